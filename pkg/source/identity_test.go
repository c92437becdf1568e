package source

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// of makes a Source remember its cluster in the store.
func of(st *store) func(*Config) {
	return func(c *Config) { c.StoredCluster, c.Remember = st.remembered(), st.remember }
}

func fresh(st *store) func(*Config) {
	return func(c *Config) { c.BeginAnew = st.beginAnew }
}

func TestAnotherClusterBehindTheSameAddressEndsTheStart(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := running(t, f, st, on, of(st))
		awaitState(t, st, s, Live)
		stop()
		if st.remembered() != "cluster-uid" {
			t.Fatalf("remembered %q", st.remembered())
		}
		f.change(func() { f.cluster = "other-uid" })
		emitted, requests := len(st.emitted()), len(f.requests())
		_, ended := ending(t, f, st, on, of(st))
		err := <-ended
		var start *StartError
		var replaced *ReplacedError
		if !errors.As(err, &start) || !errors.As(err, &replaced) || replaced.Fresh {
			t.Fatalf("ended with %v", err)
		}
		for _, part := range []string{"cluster-uid", "other-uid", "http://api", "cluster.kubeconfig", "journal.dir", "cluster.onReplaced: fresh"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		if len(st.emitted()) != emitted || len(f.requests()) != requests || st.remembered() != "cluster-uid" {
			t.Errorf("the other cluster was read: emitted %q, requests %q, remembered %q", st.emitted(), f.requests(), st.remembered())
		}
	})
}

func TestAFreshStartOnAnotherClusterBeginsWithAGap(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := running(t, f, st, on, of(st))
		awaitState(t, st, s, Live)
		stop()
		f.change(func() {
			f.cluster, f.rv = "other-uid", 3
			f.history = []fakeEvent{{3, "ADDED", "b"}}
		})
		announced := make(chan bool, 1)
		s, log, stop := running(t, f, st, on, of(st), fresh(st), func(c *Config) {
			c.Announced = func(context.Context) error { announced <- true; return nil }
		})
		defer stop()
		st.awaitEmitted(t, "snapshot a@11", "gap -3", "snapshot b@3")
		<-announced
		awaitState(t, st, s, Live)
		gap := st.change(1).Gap
		if !strings.Contains(gap.Reason, "cluster-uid") || !strings.Contains(gap.Reason, "other-uid") || st.remembered() != "other-uid" {
			t.Errorf("gap %+v, remembered %q", gap, st.remembered())
		}
		if n := log.count("another cluster answers"); n != 1 {
			t.Errorf("log\n%s", log)
		}
	})
}

func TestAnotherClusterThatTakesOverIsNotReadOn(t *testing.T) {
	for name, adjust := range map[string]func(*store) func(*Config){"fail": of, "fresh": fresh} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				s, ended := ending(t, f, st, on, adjust(st))
				awaitState(t, st, s, Live)
				f.breakWith(func() {
					f.cluster, f.rv = "other-uid", 30
					f.history = append(f.history, fakeEvent{30, "ADDED", "b"})
				})
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

func TestWithoutTheRightTheClusterIsNotChecked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.nameless = true
		st.cluster = "cluster-uid"
		began := time.Now()
		s, log, stop := running(t, f, st, on, of(st))
		defer stop()
		st.awaitEmitted(t, "snapshot a@11")
		if took := time.Since(began); took > time.Second {
			t.Errorf("the start took %s", took)
		}
		for range 20 { // reconnects ask again, and not all of them
			f.breakAll()
			awaitState(t, st, s, Live)
			time.Sleep(time.Minute)
		}
		if uid, unchecked := s.Identity(); uid != "cluster-uid" || !strings.Contains(unchecked, "forbidden") {
			t.Errorf("identity %q, %q", uid, unchecked)
		}
		if n := log.count("cannot be checked"); n != 1 {
			t.Errorf("%d lines\n%s", n, log)
		}
		f.change(func() { f.nameless = false })
		st.await(t, "the question", func() bool {
			f.breakAll()
			time.Sleep(time.Minute)
			_, unchecked := s.Identity()
			return unchecked == ""
		})
	})
}

func TestManyConnectionsThatEndAreOneQuestion(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := running(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		checks := func() int { f.mu.Lock(); defer f.mu.Unlock(); return f.checks }
		before := checks()
		since := time.Now()
		time.Sleep(time.Second)
		for range 5 {
			if err := s.confirm(t.Context(), doubt{since: since}); err != nil {
				t.Fatal(err)
			}
		}
		if n := checks() - before; n != 1 {
			t.Errorf("%d questions", n)
		}
	})
}

// TestAnotherClusterIsSeenAsSoonAsItMayBeRead has a cluster take over in which nothing was allowed at first.
func TestAnotherClusterIsSeenAsSoonAsItMayBeRead(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, ended := ending(t, f, st, on, of(st))
		awaitState(t, st, s, Live)
		f.breakWith(func() {
			f.cluster, f.rv, f.nameless, f.deny = "other-uid", 30, true, true
			f.history = append(f.history, fakeEvent{30, "ADDED", "b"})
		})
		awaitState(t, st, s, Forbidden)
		f.change(func() { f.nameless, f.deny = false, false })
		err := <-ended
		var replaced *ReplacedError
		if !errors.As(err, &replaced) || replaced.Now != "other-uid" {
			t.Fatalf("ended with %v", err)
		}
		st.awaitEmitted(t, "snapshot a@11")
	})
}

func TestARefusalSparesTheQuestionOnlyToLaterDoubts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, ended := ending(t, f, st, on, of(st))
		awaitState(t, st, s, Live)
		earlier := doubt{since: time.Now()}
		time.Sleep(time.Second)
		f.change(func() { f.nameless = true })
		for i := range triesToIdentify {
			if err := s.confirm(t.Context(), earlier); (err == nil) != (i == triesToIdentify-1) {
				t.Fatalf("question %d: %v", i, err)
			}
		}
		time.Sleep(time.Second)
		f.change(func() { f.cluster, f.nameless = "other-uid", false })
		if err := s.confirm(t.Context(), doubt{since: time.Now()}); err != nil {
			t.Errorf("a later doubt: %v", err)
		}
		var replaced *ReplacedError
		if err := s.confirm(t.Context(), earlier); !errors.As(err, &replaced) {
			t.Errorf("an earlier doubt: %v", err)
		}
		if err := <-ended; !errors.As(err, &replaced) {
			t.Errorf("ended with %v", err)
		}
	})
}
