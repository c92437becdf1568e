package attribution

import (
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/internal/audit"
)

const (
	maxVersionTimes = 4096 // by API server and resource, 16 bytes each
	maxClocks       = 256  // pairs of API server and resource; each connection counts as an API server
)

// versionTimes records when a version certainly existed: when a request had been answered with it, or with a newer version
// of the same resource, because versions of a resource are in the order of writes. Times of different API servers are not
// compared.
type versionTimes struct{ byResource recentMap[[]versionTime] }

func newVersionTimes() versionTimes { return versionTimes{newRecentMap[[]versionTime](maxClocks)} }

// versionTime means that a version and all older ones existed at a time. Both grow within a list.
type versionTime struct {
	version uint64
	at      audit.Time
}

func clockKey(r *Request) string { return r.Origin + "\x00" + r.Group + "\x00" + r.Resource }

// recordAnswer records the version in the answer to a request.
func (a versionTimes) recordAnswer(r *Request) {
	version, err := strconv.ParseUint(r.Answer.ResourceVersion, 10, 64)
	if r.Origin == "" || r.Done == 0 || err != nil {
		return
	}
	key := clockKey(r)
	all, _ := a.byResource.get(key)
	i, _ := slices.BinarySearchFunc(all, version, compareVersion)
	if i < len(all) && all[i].at <= r.Done {
		return // already known to exist at that time
	}
	from := i // older versions with no earlier time follow from this one
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
	a.byResource.putNewest(key, all)
}

// existedBefore reports whether a version certainly existed before a request was received, so that the request found it.
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
