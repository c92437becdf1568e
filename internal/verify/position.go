package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

const (
	// maxExactTries is how many watermarks are tried before the newest state is listed instead.
	maxExactTries = 3
	tailPoll      = 500 * time.Millisecond
	awaitAsked    = 10 * time.Second // for a watermark that was asked for, before an older one counts
)

// preparation finds a watermark for each scope and lists the cluster at its position.
type preparation struct{ *verification }

// prepareScopes finds a watermark for each scope and lists the cluster at its position. The error is that of the lanes.
func (v *preparation) prepareScopes(ctx context.Context) error {
	if err := v.searchBack(ctx); err != nil {
		return err
	}
	began := time.Now()
	deadline, asked := began.Add(v.Wait), began.Add(min(v.Wait, awaitAsked))
	for {
		waiting, err := v.prepareOnce(ctx)
		if err != nil || waiting == nil {
			return err
		}
		v.report("waiting for a watermark of %s", waiting.result.Resource)
		if v.AnyAge && v.tail.after != nil && time.Now().After(asked) { // a rule is paused, perhaps
			v.tail.after = nil
			if err := v.searchBack(ctx); err != nil {
				return err
			}
			continue
		}
		if time.Now().After(deadline) {
			v.refuseWaiting()
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tailPoll):
		}
		if changed, err := v.tail.searchForward(ctx); err != nil {
			return err
		} else if changed {
			v.forgetBarriers()
			if err := v.searchBack(ctx); err != nil {
				return err
			}
		}
	}
}

// forgetBarriers lets all scopes begin again, because the lanes are others now.
func (v *preparation) forgetBarriers() {
	for _, s := range v.scopes {
		s.barrier, s.listed, s.listedAt, s.newer = nil, nil, "", nil
	}
}

// searchBack searches the lanes for watermarks from their ends, until there is one of each scope.
func (v *preparation) searchBack(ctx context.Context) error {
	for window, more := int64(firstWindow), true; more; window *= windowGrowth {
		var err error
		if more, err = v.tail.searchBack(ctx, window); err != nil {
			return err
		}
		missing := false
		for _, s := range v.scopes {
			missing = missing || !s.isRefused() && v.tail.newestBarrier(s.key, s.wants) == nil
		}
		if !missing {
			return nil
		}
		v.report("looking for watermarks in %d records%s", window, v.ofTopic())
	}
	return nil
}

// wants reports whether the scope can be compared at a watermark: one of the same selection, after those that were tried,
// and after the version of the list, if there is one.
func (s *scope) wants(m *mark) bool {
	if m.selection() != s.Scope.Fingerprint() || s.barrier != nil && m.at <= s.barrier.at {
		return false
	}
	if s.listedAt == "" {
		return true
	}
	order, ordered := resourceversion.Compare(s.listedAt, m.position)
	return ordered && order <= 0
}

// prepareOnce lists each scope that has a watermark by now. It returns a scope that waits for one; nil if none does.
func (v *preparation) prepareOnce(ctx context.Context) (waiting *scope, err error) {
	for _, s := range v.scopes {
		for !s.isRefused() && !s.isListed() {
			b := v.tail.newestBarrier(s.key, s.wants)
			if b == nil {
				waiting = s
				break
			}
			if s.barrier = b; b.Algorithm == "" {
				s.refuse("the stream has not all objects of the resource in all versions, so its watermarks have no digest: a rule with " +
					"filter, onlyIfChanged or ignoreChanges, or routes that send the sink only a part; verify a sink without them")
				break
			}
			if s.listedAt != "" {
				break
			}
			if err := v.listScope(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	return waiting, nil
}

// isListed reports whether the scope has a list and a watermark that belongs to it.
func (s *scope) isListed() bool {
	if s.listed == nil || s.barrier == nil {
		return false
	}
	if s.listedAt == "" {
		return true
	}
	order, ordered := resourceversion.Compare(s.listedAt, s.barrier.position)
	return ordered && order <= 0
}

// listScope lists the cluster at the position of the barrier. If that is not available, the next watermark is tried, and
// after maxExactTries the newest state is listed: then the scope needs a watermark after it.
func (v *preparation) listScope(ctx context.Context, s *scope) error {
	s.tries++
	_, _, err := v.readScope(ctx, s, s.barrier.position)
	if source.IsVersionUnavailable(err) {
		expired := apiserver.Classify(err) == apiserver.Expired
		if expired && s.tries < maxExactTries {
			s.listed = nil
			return ctx.Err() // another watermark is wanted
		}
		return v.listNewest(ctx, s, err)
	}
	return v.refuseUnlisted(ctx, s, err)
}

// listNewest lists the newest state because the position is not available.
func (v *preparation) listNewest(ctx context.Context, s *scope, reason error) error {
	position, newest, err := v.readScope(ctx, s, "")
	if newest != "" {
		position = newest
	}
	if err == nil {
		if _, ordered := resourceversion.Compare(position, position); !ordered {
			err = fmt.Errorf("the API server lists no exact versions (%s), and its versions have no order", apiserver.Reason(reason))
		}
	}
	s.listedAt, s.newer = position, map[consumer.Key]bool{}
	s.result.ListedAt = position
	s.result.Note = fmt.Sprintf("compared with a list at %s, because there is none at the position of a watermark (%s): objects that "+
		"changed since are not compared", position, apiserver.Reason(reason))
	return v.refuseUnlisted(ctx, s, err)
}

// refuseUnlisted refuses a scope that could not be listed.
func (v *preparation) refuseUnlisted(ctx context.Context, s *scope, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reason := apiserver.Reason(err)
	var denied *apiserver.DeniedError
	if errors.As(err, &denied) {
		reason = denied.Error() + "; grant list on it, `exporter rbac` prints the rights"
	}
	s.refuse("the cluster could not be listed: " + reason)
	return nil
}

// readScope reads the objects of a scope at a version; "" is the newest.
func (v *preparation) readScope(ctx context.Context, s *scope, at string) (position, newest string, err error) {
	return v.List(ctx, s.Scope, at, source.Reading{
		Begin: func(string) error { s.listed = map[consumer.Key]version{}; return nil },
		Visit: func(o *deltas.Object) error {
			listed := version{uid: o.UID, resourceVersion: o.ResourceVersion}
			if v.Shape != nil {
				body, err := v.Shape(s.Scope, o)
				if err != nil {
					return err
				}
				listed.body = diff.Hash(body, pathAPIVersion[1:])
			}
			s.listed[consumer.Key{Namespace: o.Namespace, Name: o.Name}] = listed
			v.report("listed %d objects of %s", len(s.listed), s.result.Resource)
			return nil
		},
	})
}

// refuseWaiting refuses the scopes that have no watermark in time.
func (v *preparation) refuseWaiting() {
	for _, s := range v.scopes {
		if !s.isRefused() && !s.isListed() {
			s.refuse(v.describeWaiting(s))
		}
	}
}

// describeWaiting describes why a scope has no watermark, with the remedy.
func (v *preparation) describeWaiting(s *scope) string {
	newest := v.tail.newestMark(s.key)
	waited := fmt.Sprintf("within %v", v.Wait)
	switch {
	case newest == nil:
		return fmt.Sprintf("no watermark of the resource %s; check that the exporter runs and is ready with `watermarks` for this sink", waited)
	case newest.selection() != s.Scope.Fingerprint():
		return fmt.Sprintf("the newest watermark, at %s, is of another selection of the resource than this configuration, and no other one "+
			"came %s; check that the exporter has taken the edited rules", newest.position, waited)
	case newest.Lanes != len(v.tail.lanes):
		return fmt.Sprintf("the newest watermark, at %s, is in %d lanes, and the destination has %d, and no other one came %s; check the lanes "+
			"of the sink on /readyz", newest.position, newest.Lanes, len(v.tail.lanes), waited)
	case s.tries > 0:
		return fmt.Sprintf("the API server no longer lists at %s, the position of the newest watermark that is in all lanes, and no newer one "+
			"came %s; check that the exporter runs, and on /readyz that the rule is not paused and no lane fails", s.barrier.position, waited)
	}
	return fmt.Sprintf("the newest watermark, at %s, is not in all lanes, and no other one came %s; check the lanes of the sink on /readyz",
		newest.position, waited)
}
