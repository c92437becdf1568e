package source

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// withStoredCluster makes a Source record its cluster in the store.
func withStoredCluster(st *store) func(*Config) {
	return func(c *Config) { c.StoredClusterUID, c.RecordCluster = st.recordedCluster(), st.recordCluster }
}

func withReset(st *store) func(*Config) {
	return func(c *Config) { c.ResetCluster = st.resetCluster }
}

func TestReplacedClusterEndsTheStart(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := startSource(t, f, st, on, withStoredCluster(st))
		awaitState(t, st, s, Live)
		stop()
		if st.recordedCluster() != "cluster-uid" {
			t.Fatalf("recorded %q", st.recordedCluster())
		}
		f.update(func() { f.cluster = "other-uid" })
		emitted, requests := len(st.transcript()), len(f.requestLog())
		_, ended := runUntilEnd(t, f, st, on, withStoredCluster(st))
		err := <-ended
		var start *StartError
		var replaced *ReplacedError
		if !errors.As(err, &start) || !errors.As(err, &replaced) || replaced.Fresh {
			t.Fatalf("ended with %v", err)
		}
		for _, part := range []string{"cluster-uid", "other-uid", "http://api", "cluster.kubeconfig", "journal.dir", "cluster.onReplaced: fresh"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
		if len(st.transcript()) != emitted || len(f.requestLog()) != requests || st.recordedCluster() != "cluster-uid" {
			t.Errorf("the other cluster was read: emitted %q, requests %q, recorded %q", st.transcript(), f.requestLog(), st.recordedCluster())
		}
	})
}

func TestFreshStartOnReplacedClusterBeginsWithGap(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := startSource(t, f, st, on, withStoredCluster(st))
		awaitState(t, st, s, Live)
		stop()
		f.update(func() {
			f.cluster, f.rv = "other-uid", 3
			f.history = []fakeEvent{{3, "ADDED", "b"}}
		})
		announced := make(chan bool, 1)
		s, log, stop := startSource(t, f, st, on, withStoredCluster(st), withReset(st), func(c *Config) {
			c.GapsRecorded = func(context.Context) error { announced <- true; return nil }
		})
		defer stop()
		st.awaitEmitted(t, "snapshot a@11", "gap -3", "snapshot b@3")
		<-announced
		awaitState(t, st, s, Live)
		gap := st.changeAt(1).Gap
		if !strings.Contains(gap.Reason, "cluster-uid") || !strings.Contains(gap.Reason, "other-uid") || st.recordedCluster() != "other-uid" {
			t.Errorf("gap %+v, recorded %q", gap, st.recordedCluster())
		}
		if n := log.CountOf("another cluster answers"); n != 1 {
			t.Errorf("log\n%s", log)
		}
	})
}

// TestClusterReplacedWhileRunningIsNotRead, also by one in which nothing is allowed at first.
func TestClusterReplacedWhileRunningIsNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		adjust func(*store) func(*Config)
		closed bool // at first
	}{"fail": {withStoredCluster, false}, "fresh": {withReset, false}, "closed": {withStoredCluster, true}} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				s, ended := runUntilEnd(t, f, st, on, c.adjust(st))
				awaitState(t, st, s, Live)
				f.breakStreamsAfter(func() {
					f.cluster, f.rv, f.nameless, f.deny = "other-uid", 30, c.closed, c.closed
					f.history = append(f.history, fakeEvent{30, "ADDED", "b"})
				})
				if c.closed {
					awaitState(t, st, s, Forbidden)
					f.update(func() { f.nameless, f.deny = false, false })
				}
				err := <-ended
				var replaced *ReplacedError
				if !errors.As(err, &replaced) || replaced.Fresh != (name == "fresh") || replaced.Now != "other-uid" {
					t.Fatalf("ended with %v", err)
				}
				st.awaitEmitted(t, "snapshot a@11")
			})
		})
	}
}

func TestClusterIsUncheckedWithoutTheRight(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.nameless = true
		st.cluster = "cluster-uid"
		began := time.Now()
		s, log, stop := startSource(t, f, st, on, withStoredCluster(st))
		defer stop()
		st.awaitEmitted(t, "snapshot a@11")
		if took := time.Since(began); took > time.Second {
			t.Errorf("the start took %s", took)
		}
		for range 20 { // some of the reconnects check again
			f.breakStreams()
			awaitState(t, st, s, Live)
			time.Sleep(time.Minute)
		}
		if uid, unchecked := s.Identity(), s.identity.condition.Status(); uid != "cluster-uid" || !strings.Contains(unchecked.Cause, "forbidden") {
			t.Errorf("identity %q, %+v", uid, unchecked)
		}
		if n := log.CountOf("cannot be checked"); n != 1 {
			t.Errorf("%d lines\n%s", n, log)
		}
		f.update(func() { f.nameless = false })
		st.awaitTrue(t, "the query", func() bool {
			f.breakStreams()
			time.Sleep(time.Minute)
			return s.identity.condition.Status().OK()
		})
	})
}

func TestManyEndedConnectionsCauseOneIdentityQuery(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		checks := func() int { f.mu.Lock(); defer f.mu.Unlock(); return f.checks }
		before := checks()
		since := time.Now()
		time.Sleep(time.Second)
		for range 5 {
			if err := s.identity.confirmCluster(t.Context(), clusterRecheck{since: since}); err != nil {
				t.Fatal(err)
			}
		}
		if n := checks() - before; n != 1 {
			t.Errorf("%d queries, want 1", n)
		}
	})
}

func TestDenialSkipsOnlyLaterIdentityChecks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, ended := runUntilEnd(t, f, st, on, withStoredCluster(st))
		awaitState(t, st, s, Live)
		earlier := clusterRecheck{since: time.Now()}
		time.Sleep(time.Second)
		f.update(func() { f.nameless = true })
		for i := range maxIdentifyAttempts {
			if err := s.identity.confirmCluster(t.Context(), earlier); (err == nil) != (i == maxIdentifyAttempts-1) {
				t.Fatalf("query %d: %v", i, err)
			}
		}
		time.Sleep(time.Second)
		f.update(func() { f.cluster, f.nameless = "other-uid", false })
		if err := s.identity.confirmCluster(t.Context(), clusterRecheck{since: time.Now()}); err != nil {
			t.Errorf("a later recheck: %v", err)
		}
		var replaced *ReplacedError
		if err := s.identity.confirmCluster(t.Context(), earlier); !errors.As(err, &replaced) {
			t.Errorf("an earlier recheck: %v", err)
		}
		if err := <-ended; !errors.As(err, &replaced) {
			t.Errorf("ended with %v", err)
		}
	})
}
