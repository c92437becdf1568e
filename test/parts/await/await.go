package await

import (
	"testing"
	"time"
)

// Condition looks again and again until waitingFor returns "", the description of nothing. After the time within it ends the
// test with what is still waited for.
func Condition(t testing.TB, what string, within, every time.Duration, waitingFor func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		waits := waitingFor()
		if waits == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: after %v still waiting for: %s", what, within, waits)
		}
		Pause(t, every)
	}
}

// Pause waits between two looks. It ends the test if that is over.
func Pause(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	case <-time.After(d):
	}
}
