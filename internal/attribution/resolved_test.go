package attribution

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestResolvedOffsetsAreKept restarts again and again, each time after a part of the changes was read, and some of it was
// resolved.
func TestResolvedOffsetsAreKept(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var kept resolvedOffsets
		done := map[uint64]bool{} // what was resolved
		newest := uint64(0)
		for range 5 {
			newest += random.Uint64N(20)
			read := random.Uint64N(newest + 1)
			var waiting []uint64
			for offset := uint64(1); offset <= read; offset++ {
				if done[offset] != kept.contains(offset) {
					t.Fatalf("%d is resolved: %v, %+v", offset, done[offset], kept)
				}
				if !done[offset] && random.IntN(3) == 0 {
					done[offset] = true
				} else if !done[offset] {
					waiting = append(waiting, offset)
				}
			}
			var err error
			if kept, err = decodeResolved(encodeResolved(kept.after(read, waiting))); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.IsSorted(kept.waiting) {
			t.Fatalf("%+v", kept)
		}
	}
	if _, err := decodeResolved([]byte{0x80}); err == nil {
		t.Error("damaged bytes are accepted")
	}
}
