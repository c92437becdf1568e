package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/verify"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// repairPoll is how often the exporter is asked whether a signal has ended.
const repairPoll = 200 * time.Millisecond

// repairer has the running exporter emit again what differs, by signals, one after the other.
type repairer struct {
	client   *signals.Client
	sink     string
	wait     time.Duration // for the end of each signal, and for an exporter that has answered before
	progress func(string)
	result   *verify.Repair
	answered bool   // an exporter has, so that from then on one is waited for
	previous string // ID of the last signal; "" if none was taken yet
}

// repair emits again what differs, until an error, and adds what is done to the result.
func (r *repairer) repair(ctx context.Context, found []verify.Differing) error {
	for _, d := range found {
		done, err := r.repairScope(ctx, d)
		r.result.Resources = append(r.result.Resources, done)
		if err != nil {
			return err
		}
	}
	return nil
}

// repairScope emits again what differs of one scope, and returns what of it is done.
func (r *repairer) repairScope(ctx context.Context, d verify.Differing) (verify.ScopeRepair, error) {
	done := verify.ScopeRepair{Resource: d.Scope.Resource.String(), Namespace: d.Scope.Namespace, Signals: []string{}, Whole: d.Whole}
	if d.Reason != "" {
		done.Reason, done.Whole = d.Reason, false
		return done, nil
	}
	isNamed := func(key string) bool {
		return signals.IsObject(key) && strings.Contains(key, "/") == d.Scope.Namespaced
	}
	all := len(d.Existing) + len(d.Absent)
	existing := slices.DeleteFunc(d.Existing, func(key string) bool { return !isNamed(key) })
	absent := slices.DeleteFunc(d.Absent, func(key string) bool { return !isNamed(key) })
	if left := all - len(existing) - len(absent); left > 0 {
		done.Reason = fmt.Sprintf("%d records have keys that no object of the resource can have, and no delete can be emitted of them: "+
			"remove them from the topic or stream", left)
	}
	if d.Whole {
		n, err := r.send(ctx, signals.Request{Namespace: d.Scope.Namespace}, &done)
		if err != nil {
			return done, err
		}
		done.Existing = n
	}
	if err := r.sendNamed(ctx, existing, &done, &done.Existing); err != nil {
		return done, err
	}
	return done, r.sendNamed(ctx, absent, &done, &done.Absent)
}

// sendNamed emits objects again in signals of a bounded size, and counts those of signals that are done.
func (r *repairer) sendNamed(ctx context.Context, keys []string, done *verify.ScopeRepair, count *int) error {
	for chunk := range slices.Chunk(keys, signals.MaxEntries) {
		if _, err := r.send(ctx, signals.Request{Objects: chunk}, done); err != nil {
			return err
		}
		*count += len(chunk)
	}
	return nil
}

// send sends a signal and waits until it is done. It returns how many objects that emitted.
func (r *repairer) send(ctx context.Context, request signals.Request, done *verify.ScopeRepair) (int, error) {
	request.Kind, request.Sink, request.ID, request.Select = signals.Snapshot, r.sink, signals.NewID(), []string{done.Resource}
	id, err := r.submit(ctx, request)
	if err != nil {
		return 0, err
	}
	r.previous = id
	s, err := r.awaitEnd(ctx, id)
	if err != nil {
		return 0, err
	}
	if s.State != signals.Done {
		return 0, fmt.Errorf("signal %s is %s: %s", id, s.State, s.Result)
	}
	done.Signals = append(done.Signals, id)
	r.progress(fmt.Sprintf("signal %s for %s: %s", id, done.Resource, s.Result))
	return int(s.Count), nil
}

// submit sends a request until the exporter has stored its signal, and returns its ID. An exporter that has answered before
// may be away for a while, and may have stored a signal without an answer: it is asked again, with the same ID.
func (r *repairer) submit(ctx context.Context, request signals.Request) (string, error) {
	if !r.answered {
		if _, err := r.client.List(ctx); err != nil {
			return "", err
		}
		r.answered = true
	}
	for deadline := time.Now().Add(r.wait); ; {
		s, err := r.client.Submit(ctx, request)
		isLast := time.Now().After(deadline)
		waitsForPrevious := r.previous != "" && strings.Contains(s.Result, r.previous) // which has just ended
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case s.ID != "" && s.State != signals.Refused:
			return s.ID, nil // with an error, too: what became of it is in the list
		case err == nil && (isLast || !waitsForPrevious):
			return "", fmt.Errorf("signal %s is refused: %s", s.ID, s.Result)
		case err != nil && (isLast || !isAway(err)):
			return "", err
		}
		if err == nil {
			request.ID = signals.NewID()
		}
		if err := ratelimit.Sleep(ctx, repairPoll); err != nil {
			return "", err
		}
	}
}

// isAway reports whether an exporter does not answer, or is not the active one.
func isAway(err error) bool {
	var unanswered *signals.UnansweredError
	var inactive *signals.NotActiveError
	return errors.As(err, &unanswered) || errors.As(err, &inactive)
}

// awaitEnd waits until a signal has ended. An exporter that is killed meanwhile goes on with it when it is started again.
func (r *repairer) awaitEnd(ctx context.Context, id string) (signals.Signal, error) {
	for deadline := time.Now().Add(r.wait); ; {
		all, err := r.client.List(ctx)
		i := slices.IndexFunc(all, func(s signals.Signal) bool { return s.ID == id })
		if i >= 0 && all[i].State != signals.Active {
			return all[i], nil
		}
		if time.Now().After(deadline) {
			return signals.Signal{}, errors.New(describeUnended(id, r.wait, i >= 0, err))
		}
		if err := ratelimit.Sleep(ctx, repairPoll); err != nil {
			return signals.Signal{}, err
		}
	}
}

// describeUnended describes why a signal has no end in time, with the remedy.
func describeUnended(id string, waited time.Duration, known bool, err error) string {
	text := fmt.Sprintf("signal %s has not ended within %v", id, waited)
	switch {
	case err != nil:
		return text + ": " + err.Error() + "; the signal goes on when an exporter with this journal or state is active again. Verify again then"
	case known:
		return text + "; it goes on, and exporter signal list has its end. Verify again then, with a longer --wait for a large resource, or end it " +
			"by exporter signal cancel " + id
	}
	return text + ", and the exporter here does not know it; another one may be active and go on with it. Verify again there"
}
