package attribution

import (
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/internal/audit"
)

const (
	maxVersionTimes = 4096 // that are remembered of one API server about one resource, 16 bytes each
	maxClocks       = 256  // of these: an API server that connects again is another one
)

// versionTimes know when a version was there for certain: when a request was answered with it, or with a newer one of the same
// resource, whose versions are in the order of their writes. Only the clocks of one API server are compared.
type versionTimes struct{ byResource recentMap[[]versionTime] }

func newVersionTimes() versionTimes { return versionTimes{newRecentMap[[]versionTime](maxClocks)} }

// versionTime says that a version, and everything before it, was there at a time. In a list both grow.
type versionTime struct {
	version uint64
	at      audit.Time
}

func clockKey(r *Request) string { return r.Origin + "\x00" + r.Group + "\x00" + r.Resource }

// recordAnswer takes note of what a request was answered with.
func (a versionTimes) recordAnswer(r *Request) {
	version, err := strconv.ParseUint(r.Answer.ResourceVersion, 10, 64)
	if r.Origin == "" || r.Done == 0 || err != nil {
		return
	}
	place := clockKey(r)
	all, _ := a.byResource.get(place)
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
	all = slices.Replace(all, from, i, versionTime{version, r.Done})
	if len(all) > maxVersionTimes {
		all = slices.Delete(all, 0, len(all)-maxVersionTimes)
	}
	a.byResource.putNewest(place, all)
}

// existedBefore says that a version was there before a request came, so that the request found it.
func (a versionTimes) existedBefore(r *Request, version string) bool {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil || r.Received == 0 {
		return false
	}
	all, _ := a.byResource.get(clockKey(r))
	i, _ := slices.BinarySearchFunc(all, v, compareVersion)
	return i < len(all) && all[i].at < r.Received
}

func compareVersion(a versionTime, version uint64) int {
	switch {
	case a.version < version:
		return -1
	case a.version > version:
		return 1
	}
	return 0
}
