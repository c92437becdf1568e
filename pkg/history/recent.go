package history

// recentHashes bounds one of the two generations of a [Recent]. Both have some 40 MB.
const recentHashes = 1 << 19

// Recent is what the newest rows are known by, for a writer of a stream in which records come again.
type Recent struct {
	stored       Seen
	older, newer map[uint64]struct{}
}

// NewRecent returns one that knows rows which are stored.
func NewRecent(stored Seen) *Recent { return &Recent{stored: stored, newer: map[uint64]struct{}{}} }

// Add reports whether a row is not known, and remembers it. isVersion is as in [Seen.Has].
func (r *Recent) Add(f *Facts, isVersion bool) bool {
	texts := textsOf(f)
	known := func(hash uint64) bool {
		_, newer := r.newer[hash]
		_, older := r.older[hash]
		return newer || older
	}
	exact, version := hash(f.ObservedAt.UnixMicro(), texts[:]...), hash(0, texts[:]...)
	if known(exact) || isVersion && known(version) || r.stored.Has(f, isVersion) {
		return false
	}
	if len(r.newer) >= recentHashes {
		r.older, r.newer = r.newer, make(map[uint64]struct{}, recentHashes)
	}
	if r.newer[exact] = (struct{}{}); f.Name != "" {
		r.newer[version] = struct{}{}
	}
	return true
}
