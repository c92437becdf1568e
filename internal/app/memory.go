package app

import (
	"os"
	"runtime/debug"
)

// gcPercent is how much garbage, in percent of what is alive, makes the garbage collector run. Most of what is alive is
// known objects and bounded buffers, without many pointers, so that a collection is cheap and memory is not: see
// docs/adr/0010-collect-garbage-at-half.md.
const gcPercent = 50

// tuneMemory sets gcPercent, unless the environment says otherwise. GOMEMLIMIT works as always.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
