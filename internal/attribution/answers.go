package attribution

import (
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/internal/audit"
)

const (
	maxAnswers = 4096 // that are remembered of one API server about one resource, 16 bytes each
	maxPlaces  = 256  // of these: an API server that connects again is another one
)

// answers know when a version was there for certain: when a request was answered with it, or with a newer one of the same
// resource, whose versions are in the order of their writes. Only the clocks of one API server are compared.
type answers struct{ places newest[[]answered] }

func newAnswers() answers { return answers{keepNewest[[]answered](maxPlaces)} }

// answered says that a version, and everything before it, was there at a time. In a list both grow.
type answered struct {
	version uint64
	at      audit.Time
}

func placeOf(r *Request) string { return r.Origin + "\x00" + r.Group + "\x00" + r.Resource }

// take takes note of what a request was answered with.
func (a answers) take(r *Request) {
	version, err := strconv.ParseUint(r.Answer.ResourceVersion, 10, 64)
	if r.Origin == "" || r.Done == 0 || err != nil {
		return
	}
	place := placeOf(r)
	all, _ := a.places.get(place)
	i, _ := slices.BinarySearchFunc(all, version, compareVersion)
	if i < len(all) && all[i].at <= r.Done {
		return // known to be there already then
	}
	from := i // what was there no later than this one is said by it
	for from > 0 && all[from-1].at >= r.Done {
		from--
	}
	if i < len(all) && all[i].version == version {
		i++
	}
	all = slices.Replace(all, from, i, answered{version, r.Done})
	if len(all) > maxAnswers {
		all = slices.Delete(all, 0, len(all)-maxAnswers)
	}
	a.places.put(place, all)
}

// before says that a version was there before a request came, so that the request found it.
func (a answers) before(r *Request, version string) bool {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil || r.Received == 0 {
		return false
	}
	all, _ := a.places.get(placeOf(r))
	i, _ := slices.BinarySearchFunc(all, v, compareVersion)
	return i < len(all) && all[i].at < r.Received
}

func compareVersion(a answered, version uint64) int {
	switch {
	case a.version < version:
		return -1
	case a.version > version:
		return 1
	}
	return 0
}
