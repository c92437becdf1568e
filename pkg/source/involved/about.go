package involved

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// about is what an Event says of the object that it is about, and of its own.
type about struct {
	apiVersion, kind, namespace, name, uid string

	version string    // resourceVersion of the Event
	created string    // when the Event was created, by the clock of the API server
	read    time.Time // when the Event was read

	body       []byte
	start, end int // of the reference within the body; end is its closing brace
}

// added are the members that the package adds to a reference.
var added = [...]string{"labels", "annotations", "owner", "unknown"}

// parseAbout finds the reference in an Event: involvedObject in the core group, regarding in events.k8s.io. ok is false if it
// has none.
func parseAbout(body []byte) (a about, ok bool) {
	a.body = body
	m := rawjson.EnterObject(body, rawjson.SkipSpace(body, 0))
	for m.Next() {
		start := m.I
		m.I = rawjson.SkipTrustedValue(body, start)
		if m.I < 0 {
			return a, false
		}
		switch string(m.Key) {
		case "involvedObject", "regarding":
			if body[start] == '{' {
				a.start, a.end, ok = start, m.I-1, true
			}
		case "metadata":
			a.created = memberAt(body, start, "creationTimestamp")
		}
	}
	if !ok || m.I < 0 {
		return a, false
	}
	for m := rawjson.EnterObject(body, a.start); m.Next(); {
		start := m.I
		m.I = rawjson.SkipTrustedValue(body, start)
		switch {
		case m.I < 0:
			return a, false
		case string(m.Key) == "apiVersion":
			a.apiVersion = textAt(body, start, m.I)
		case string(m.Key) == "kind":
			a.kind = textAt(body, start, m.I)
		case string(m.Key) == "namespace":
			a.namespace = textAt(body, start, m.I)
		case string(m.Key) == "name":
			a.name = textAt(body, start, m.I)
		case string(m.Key) == "uid":
			a.uid = textAt(body, start, m.I)
		}
	}
	return a, true
}

// names reports whether the Event may be about an object with this uid. The kubelet writes the name of its Node for it.
func (a *about) names(uid string) bool { return a.uid == "" || a.uid == uid || a.uid == a.name }

// memberAt returns the text of a member of the object at i; "" if it has none.
func memberAt(body []byte, i int, name string) string {
	m := rawjson.EnterObject(body, i)
	for m.Next() {
		start := m.I
		if m.I = rawjson.SkipTrustedValue(body, start); m.I >= 0 && string(m.Key) == name {
			return textAt(body, start, m.I)
		}
	}
	return ""
}

// textAt returns the string in body[start:end]; "" for any other value.
func textAt(body []byte, start, end int) string {
	if body[start] != '"' {
		return ""
	}
	return string(rawjson.Unquote(body[start:end]))
}

// with returns the Event with further members in the reference, each with a comma before it.
func (a *about) with(members string) []byte {
	if rawjson.SkipSpace(a.body, a.start+1) == a.end {
		members = strings.TrimPrefix(members, ",")
	}
	out := make([]byte, 0, len(a.body)+len(members))
	return append(append(append(out, a.body[:a.end]...), members...), a.body[a.end:]...)
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
	a, ok := parseAbout(body)
	if !ok {
		return body
	}
	first := a.end
	m := rawjson.EnterObject(body, a.start)
	for m.Next() {
		for _, name := range added {
			if string(m.Key) == name {
				first = min(first, max(m.Comma, a.start+1)) // what is added stands last
			}
		}
		m.I = rawjson.SkipTrustedValue(body, m.I)
	}
	if first == a.end {
		return body
	}
	out := append(append(make([]byte, 0, len(body)), body[:first]...), body[a.end:]...)
	if a.body, a.end = out, first; reason != "" {
		return a.withReason(reason)
	}
	return out
}
