package attribution

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

const (
	maxVersionTimes = 2048 // by API server and resource, 40 bytes each, and as many that are not reached yet
	maxClocks       = 256  // pairs of API server and resource; each connection counts as an API server
)

// versionTimes records when a version certainly existed: when a request had been answered with it, or with a newer version
// of the same resource, because versions of a resource are in the order of writes. Times of different API servers are not
// compared. An answer with a version that the stream has not reached waits until it has: nothing else proves that there is
// such a version, and a huge one would make every later request too late.
type versionTimes struct {
	byResource recentMap[*answerTimes]
	reached    string // newest version in the stream, of any resource
}

func newVersionTimes() versionTimes {
	return versionTimes{byResource: newRecentMap[*answerTimes](maxClocks)}
}

// answerTimes are the answers of one API server about one resource.
type answerTimes struct {
	known []versionTime // versions and times grow
	ahead []versionTime // in the order of arrival, until existedBefore finds that they are reached
	made  []versionTime // versions of pods and times grow; here the version and all newer ones did not exist at the time
}

// versionTime means that a version and all older ones existed at a time.
type versionTime struct {
	version string
	at      audit.Time
}

func clockKey(r *Request) string { return r.Origin + "\x00" + r.Group + "\x00" + r.Resource }

// recordReached records that the stream has a version.
func (a *versionTimes) recordReached(version string) {
	if a.reached == "" && resourceversion.IsOrdered(version) || isNewer(version, a.reached) {
		a.reached = strings.Clone(version)
	}
}

func isNewer(version, than string) bool {
	order, ordered := resourceversion.Compare(version, than)
	return ordered && order > 0
}

// recordAnswer records the version in the answer to a request.
func (a *versionTimes) recordAnswer(r *Request) {
	if r.Origin == "" || r.Done == 0 || !resourceversion.IsOrdered(r.Answer.ResourceVersion) {
		return
	}
	times, found := a.byResource.get(clockKey(r))
	if !found {
		times = &answerTimes{}
	}
	if times.ahead = append(times.ahead, versionTime{r.Answer.ResourceVersion, r.Done}); len(times.ahead) > maxVersionTimes {
		a.addReached(times)
		times.ahead = slices.Delete(times.ahead, 0, len(times.ahead)/2)
	}
	if r.created() && r.Resource == "pods" && r.Received != 0 {
		times.addMade(versionTime{r.Answer.ResourceVersion, r.Received})
	}
	a.byResource.putNewest(clockKey(r), times)
}

// addMade records that a request that was received at a time made a version.
func (t *answerTimes) addMade(one versionTime) {
	i, found := slices.BinarySearchFunc(t.made, one.version, compareVersion)
	if found || i > 0 && t.made[i-1].at >= one.at {
		return // already known not to exist at that time
	}
	to := i // newer versions with no later time follow from this one
	for to < len(t.made) && t.made[to].at <= one.at {
		to++
	}
	t.made = slices.Replace(t.made, i, to, one)
	if len(t.made) > maxVersionTimes {
		t.made = slices.Delete(t.made, 0, len(t.made)-maxVersionTimes)
	}
}

// addReached makes the answers known whose versions the stream has reached.
func (a *versionTimes) addReached(times *answerTimes) {
	times.ahead = slices.DeleteFunc(times.ahead, func(t versionTime) bool {
		if a.reached == "" || isNewer(t.version, a.reached) {
			return false
		}
		times.addKnown(t)
		return true
	})
}

func (t *answerTimes) addKnown(one versionTime) {
	i, found := slices.BinarySearchFunc(t.known, one.version, compareVersion)
	if i < len(t.known) && t.known[i].at <= one.at {
		return // already known to exist at that time
	}
	from := i // older versions with no earlier time follow from this one
	for from > 0 && t.known[from-1].at >= one.at {
		from--
	}
	if found {
		i++
	}
	t.known = slices.Replace(t.known, from, i, one)
	if len(t.known) > maxVersionTimes {
		t.known = slices.Delete(t.known, 0, len(t.known)-maxVersionTimes)
	}
}

// existedBefore reports whether a version certainly existed before a request was received, so that the request found it.
func (a *versionTimes) existedBefore(r *Request, version string) bool {
	if r.Received == 0 || !resourceversion.IsOrdered(version) {
		return false
	}
	times, found := a.byResource.get(clockKey(r))
	if !found {
		return false
	}
	a.addReached(times)
	i, _ := slices.BinarySearchFunc(times.known, version, compareVersion)
	return i < len(times.known) && times.known[i].at < r.Received
}

// madeAfter reports whether a version of a pod certainly did not exist when a request had been answered: the same API server
// received the request later that made this version or an older one.
func (a *versionTimes) madeAfter(r *Request, version string) bool {
	times, found := a.byResource.get(clockKey(r))
	if !found || r.Done == 0 || !resourceversion.IsOrdered(version) {
		return false
	}
	i, exact := slices.BinarySearchFunc(times.made, version, compareVersion)
	if !exact {
		i--
	}
	return i >= 0 && times.made[i].at > r.Done
}

func compareVersion(a versionTime, version string) int {
	order, _ := resourceversion.Compare(a.version, version)
	return order
}
