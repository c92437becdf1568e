package involved

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// reference is what an Event says of the object that it is about.
type reference struct{ APIVersion, Kind, Namespace, Name, UID string }

// names reports whether the object may have this uid. The kubelet writes the name of its Node for it.
func (r reference) names(uid string) bool { return r.UID == "" || r.UID == uid || r.UID == r.Name }

// about is an Event that names its object.
type about struct {
	reference
	version string    // resourceVersion of the Event
	created string    // when the Event was created, by the clock of the API server
	read    time.Time // when it was read: what is read together waits together

	body       []byte
	start, end int // of the reference within the body; end is its closing brace
}

// parseAbout finds the reference in an Event: involvedObject in the core group, regarding in events.k8s.io.
func parseAbout(body []byte, version string) (a about, ok bool) {
	a.body, a.version = body, version
	m := rawjson.EnterObject(body, rawjson.SkipSpace(body, 0))
	for m.Next() {
		start := m.I
		if m.I = rawjson.SkipTrustedValue(body, start); m.I < 0 || body[start] != '{' {
			continue
		}
		switch string(m.Key) {
		case "involvedObject", "regarding":
			a.start, a.end = start, m.I-1
			ok = json.Unmarshal(body[start:m.I], &a.reference) == nil
		case "metadata":
			var of struct{ CreationTimestamp string }
			if json.Unmarshal(body[start:m.I], &of) == nil {
				a.created = of.CreationTimestamp
			}
		}
	}
	return a, ok && m.I >= 0
}

// with returns the Event with further members in the reference, each with a comma before it.
func (a *about) with(members string) []byte {
	if rawjson.SkipSpace(a.body, a.start+1) == a.end {
		members = strings.TrimPrefix(members, ",")
	}
	return slices.Concat(a.body[:a.end], []byte(members), a.body[a.end:])
}

// withReason returns the Event with the reason why nothing is known of its object.
func (a *about) withReason(reason string) []byte {
	text, err := json.Marshal(reason)
	if err != nil {
		return a.body // impossible: a string has a JSON form
	}
	return a.with(`,"unknown":` + string(text))
}

// Remove returns an Event without what the package has added, in place of which it puts the reason, if there is one.
func Remove(body []byte, reason string) []byte {
	a, ok := parseAbout(body, "")
	if !ok {
		return body
	}
	first := a.end
	for m := rawjson.EnterObject(body, a.start); m.Next(); m.I = rawjson.SkipTrustedValue(body, m.I) {
		switch string(m.Key) {
		case "labels", "annotations", "owner", "unknown": // they stand last
			first = min(first, max(m.Comma, a.start+1))
		}
	}
	if first == a.end {
		return body
	}
	a.body, a.end = slices.Concat(body[:first], body[a.end:]), first
	if reason == "" {
		return a.body
	}
	return a.withReason(reason)
}
