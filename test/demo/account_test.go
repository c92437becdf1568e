package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// arrives notes an event of one object, made from its type and resourceVersion.
func arrives(t *testing.T, a *account, kind, version string) {
	t.Helper()
	e, err := parseEvent([]byte(`{"id": "demo/u/` + version + `/` + kind + `", "type": "` + kind + `", "uid": "u", "resourceVersion": "` + version + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	a.receive(e)
}

func TestTheAccountIsRightWhenEverythingArrived(t *testing.T) {
	a := newAccount()
	a.write(revision{"u", "1"}, "x")
	arrives(t, a, "added", "1")
	arrives(t, a, "updated", "2") // may arrive before the answer of the API server
	a.write(revision{"u", "2"}, "x")
	a.write(revision{"u", ended}, "x")
	arrives(t, a, "deleted", "3")
	if got, want := a.tally(), (tally{written: 3}); got != want || !got.right() {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func TestTheAccountSeesWhatWentWrong(t *testing.T) {
	for _, c := range []struct {
		name  string
		play  func(*account)
		want  tally
		right bool
	}{
		{"a state is lost", func(a *account) { a.write(revision{"u", "7"}, "x") }, tally{written: 1, missing: 1}, false},
		{"a delete is lost", func(a *account) {
			a.write(revision{"u", ended}, "x")
			arrives(t, a, "updated", "7")
		}, tally{written: 1, missing: 1, others: 1}, false},
		{"an older state comes after a newer one", func(a *account) {
			arrives(t, a, "updated", "9")
			arrives(t, a, "updated", "7")
		}, tally{others: 2, reversed: 1}, false},
		{"history is lost", func(a *account) { arrives(t, a, "gap", "9") }, tally{gaps: 1}, false},
		{"an event comes again", func(a *account) {
			arrives(t, a, "updated", "9")
			arrives(t, a, "updated", "9")
		}, tally{others: 1, repeated: 1}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAccount()
			c.play(a)
			if got := a.tally(); got != c.want || got.right() != c.right {
				t.Errorf("%+v, right %v; want %+v, %v", got, got.right(), c.want, c.right)
			}
		})
	}
}

func TestWhoWaitsForAChangeThatIsLostIsToldWhich(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		a.write(revision{"u", "7"}, "configmaps shop/settings")
		err := a.awaitAll(t.Context())
		const want = "context deadline exceeded: 1 of 1 changes did not arrive: configmaps shop/settings 7"
		if !errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
			t.Fatalf("%v, want %s", err, want)
		}
	})
}

func TestWhoWaitsGoesOnWhenTheLastChangeArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		a.write(revision{"u", "7"}, "x")
		done := make(chan error)
		go func() { done <- a.awaitAll(t.Context()) }()
		synctest.Wait()
		arrives(t, a, "updated", "7")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
