package verify

import (
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Kind is how the state of an object in the stream differs from the cluster, or what is wrong with a record.
type Kind string

// The kinds of differences. The first five compare states.
const (
	Equal     Kind = "equal"
	Missing   Kind = "missing"   // the cluster has the object, the stream does not
	Ghost     Kind = "ghost"     // the stream has an object that does not exist
	Stale     Kind = "stale"     // the stream has an older version
	Different Kind = "different" // the stream has another object, version or content, which is not older

	OutOfOrder Kind = "out of order" // a record that comes after a newer one of its object, or after a watermark that covers it
	Repeated   Kind = "repeated"     // the newest record of an object in a lane repeats an older one
	Malformed  Kind = "malformed"    // the members of a record contradict each other, or its key is that of another object
)

// version is one version of an object. The zero value is no object.
type version struct {
	uid, resourceVersion string
	body                 string // hash; "" if bodies are not compared
}

func (v version) exists() bool { return v.uid != "" || v.resourceVersion != "" }

// Locations of the members that identify a version (RFC 6901).
const (
	pathUID     = "/metadata/uid"
	pathVersion = "/metadata/resourceVersion"

	pathAPIVersion = "/apiVersion" // does not identify one: a resource can be served in several
)

// compareVersions compares an object in the stream with the cluster. path is where they differ; "" if that is their
// contents, or if one of them does not exist.
func compareVersions(stream, cluster version) (kind Kind, path string) {
	switch {
	case !stream.exists() && !cluster.exists():
		return Equal, ""
	case !stream.exists():
		return Missing, ""
	case !cluster.exists():
		return Ghost, ""
	case stream.uid == cluster.uid && stream.resourceVersion == cluster.resourceVersion:
		if stream.body != "" && cluster.body != "" && stream.body != cluster.body {
			return Different, ""
		}
		return Equal, ""
	}
	if path = pathVersion; stream.uid != cluster.uid {
		path = pathUID
	}
	if isBefore(stream.resourceVersion, cluster.resourceVersion) {
		return Stale, path
	}
	return Different, path
}

// isBefore reports whether a version is known to be older than another one.
func isBefore(a, b string) bool {
	order, ordered := resourceversion.Compare(a, b)
	return ordered && order < 0
}

// isAfter reports whether a version is known to be newer than another one.
func isAfter(a, b string) bool { return isBefore(b, a) }
