package journal

import (
	"testing"
	"time"
)

func TestSettledChangesAreKeptForTheRetention(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := retention{keep: 5 * time.Minute}
	for second := range 3600 {
		low := uint64(second)
		if second > 1800 { // a sink goes back
			low = uint64(second - 1000)
		}
		got := r.trimLimit(low, start.Add(time.Duration(second)*time.Second))
		switch {
		case second < 300 && got != 0:
			t.Fatalf("after %d s: trimmed up to %d, within the first five minutes", second, got)
		case second >= 330 && second < 1800 && (got > low-300 || got < low-330):
			t.Fatalf("after %d s: trimmed up to %d, want what is older than five minutes", second, got)
		case got > low:
			t.Fatalf("after %d s: trimmed up to %d, which is not settled", second, got)
		case len(r.samples) > maxSettledSamples+2:
			t.Fatalf("%d marks", len(r.samples))
		}
	}
	if got := (&retention{}).trimLimit(7, start); got != 7 {
		t.Errorf("without a time to keep: %d", got)
	}
}
