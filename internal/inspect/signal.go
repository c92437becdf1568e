package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/verify"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// SendSignal asks an exporter for something, and writes the signal that this makes.
func SendSignal(ctx context.Context, client *signals.Client, r signals.Request, asJSON bool, out io.Writer) error {
	s, err := client.Submit(ctx, r)
	return writeSignal(s, err, asJSON, out)
}

// writeSignal writes what became of a signal, or returns why it is not in force. One without an ID was sent to no exporter.
func writeSignal(s signals.Signal, err error, asJSON bool, out io.Writer) error {
	switch {
	case err != nil && s.ID != "":
		return exit.With(exit.Runtime, fmt.Errorf("signal %s: %w; exporter signal list shows what became of it", s.ID, err))
	case err != nil && s.State != "":
		return exit.With(exit.Runtime, fmt.Errorf("%s: %s", describeRequest(s), s.Result))
	case err != nil:
		return signalExitError(err)
	case s.State == signals.Refused:
		return usageErrorf("%s is refused: %s", describeRequest(s), s.Result)
	case asJSON:
		return json.NewEncoder(out).Encode(s)
	}
	_, err = fmt.Fprintln(out, describeSignal(s))
	return err
}

// describeRequest names a signal: by its ID, if it has one.
func describeRequest(s signals.Signal) string {
	if s.ID == "" {
		return fmt.Sprintf("%s of %s", s.Kind, s.Subject())
	}
	return "signal " + s.ID
}

// describeSignal returns what became of a signal, in one line.
func describeSignal(s signals.Signal) string {
	text := fmt.Sprintf("%s of %s: ", s.Kind, s.Subject())
	if s.ID != "" {
		text = "signal " + s.ID + ": " + text
	}
	switch {
	case s.State != signals.Active:
		return text + string(s.State) + ": " + s.Result
	case s.Kind == signals.Snapshot, s.Kind == signals.Replay:
		return text + s.Result
	case s.Until.IsZero():
		text += "in force until it is resumed; "
	default:
		text += fmt.Sprintf("in force until %s; ", s.Until.Format(time.RFC3339))
	}
	if s.Rule != "" {
		return text + "nothing of it is read; once the API server no longer has the history, after a few minutes, it goes on with a gap"
	}
	return text + fmt.Sprintf("%d changes wait", s.Count)
}

// ListSignals writes the signals that an exporter keeps, the oldest first: as text, or as one JSON object per line.
func ListSignals(ctx context.Context, client *signals.Client, asJSON bool, out io.Writer) error {
	all, err := client.List(ctx)
	if err != nil {
		return signalExitError(err)
	}
	if asJSON {
		e := json.NewEncoder(out)
		for _, s := range all {
			if err := e.Encode(s); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tTIME\tSIGNAL\tOF\tSTATE\tENDED\tRESULT")
	for _, s := range all {
		ended, result, of := "", s.Result, s.Sink
		if s.Rule != "" {
			of = s.Subject().String()
		}
		if !s.Ended.IsZero() {
			ended = s.Ended.Format(time.RFC3339)
		} else if !s.Until.IsZero() {
			result = "until " + s.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, s.Created.Format(time.RFC3339), orDash(string(s.Kind)), orDash(of), s.State, orDash(ended),
			orDash(strings.Map(replaceUnprintable, result)))
	}
	return t.Flush()
}

// signalExitError adds the exit code to an error of a client.
func signalExitError(err error) error {
	var denied *signals.DeniedError
	var invalid *signals.InvalidError
	switch {
	case isAway(err) || errors.As(err, &denied):
		return exit.With(exit.Environment, err)
	case errors.As(err, &invalid):
		return usageErrorf("the signal is refused: %w", err)
	}
	return exit.With(exit.Runtime, err)
}

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
