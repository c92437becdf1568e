package audit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// PolicyName is the name of the ValidatingAdmissionPolicy whose audit annotations are understood.
const PolicyName = "kubecdc-identity"

const (
	apiVersion = "audit.k8s.io/v1"
	truncated  = "audit.k8s.io/truncated"

	notedUID       = PolicyName + "/uid"
	notedReplaces  = PolicyName + "/replaces"
	notedUnchanged = PolicyName + "/unchanged"
)

// ErrMalformed says that bytes are no audit event of audit.k8s.io/v1. Errors name places and never quote the bytes.
var ErrMalformed = errors.New("no audit event of audit.k8s.io/v1")

func malformed(at int) error { return fmt.Errorf("%w: wrong at byte %d", ErrMalformed, at) }

// Append appends every event of an EventList, or the one event that b is, to events. b is not kept. On an error it returns
// events as they were.
func Append(events []Event, b []byte) ([]Event, error) {
	start := rawjson.SkipSpace(b, 0)
	m := rawjson.Enter(b, start)
	items := -1
	version := ""
	for m.Next() {
		switch string(m.Key) {
		case "items":
			items = m.I
		case "apiVersion":
			version = text(b, m.I)
		}
		m.I = rawjson.PassValue(b, m.I)
	}
	switch {
	case m.I < 0:
		return events, malformed(rawjson.Fail(m.I))
	case rawjson.SkipSpace(b, m.I) != len(b):
		return events, malformed(m.I)
	case items < 0:
		e, err := Scan(b)
		if err != nil {
			return events, err
		}
		return append(events, e), nil
	case version != apiVersion:
		return events, fmt.Errorf("%w: the list has another apiVersion", ErrMalformed)
	}
	return appendItems(events, b, items)
}

func appendItems(events []Event, b []byte, at int) ([]Event, error) {
	all := events
	end := elements(b, at, func(i int) int {
		all = append(all, Event{})
		return scanEvent(b, i, &all[len(all)-1])
	})
	if end < 0 {
		return events, malformed(rawjson.Fail(end))
	}
	return all, nil
}

// Scan reads one event.
func Scan(b []byte) (Event, error) {
	var e Event
	end := scanEvent(b, rawjson.SkipSpace(b, 0), &e)
	switch {
	case end < 0:
		return Event{}, malformed(rawjson.Fail(end))
	case rawjson.SkipSpace(b, end) != len(b):
		return Event{}, malformed(end)
	case e.Stage == "":
		return Event{}, fmt.Errorf("%w: it has no stage", ErrMalformed)
	}
	return e, nil
}

// scanEvent reads the event that begins at i into an empty one and returns the index behind it, or a negative one.
func scanEvent(b []byte, i int, e *Event) int {
	other := false
	end := members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "apiVersion":
			other = text(b, i) != apiVersion
		case "auditID":
			e.ID = text(b, i)
		case "stage":
			e.Stage = text(b, i)
		case "verb":
			e.Verb = text(b, i)
		case "requestURI":
			e.DryRun = dryRun(text(b, i))
		case "user":
			var u User
			end := scanUser(b, i, &u)
			e.User, e.UserUID, e.Groups = u.Name, u.UID, u.Groups
			return end
		case "impersonatedUser":
			if b[i] == '{' {
				e.Impersonated = &User{}
				return scanUser(b, i, e.Impersonated)
			}
		case "sourceIPs":
			return texts(b, i, &e.SourceIPs)
		case "userAgent":
			e.UserAgent = text(b, i)
		case "requestReceivedTimestamp":
			e.Received = timeOf(text(b, i))
		case "stageTimestamp":
			e.Done = timeOf(text(b, i))
		case "objectRef":
			return e.scanReference(b, i)
		case "responseStatus":
			return e.scanStatus(b, i)
		case "responseObject":
			return e.scanAnswer(b, i)
		case "annotations":
			return e.scanAnnotations(b, i)
		}
		return pass
	})
	if other {
		return rawjson.Fail(i)
	}
	if e.Verb != "deletecollection" {
		e.Items = nil // of an object that has a member of this name
	}
	return end
}

// dryRun says whether a request stored nothing. It is asked of the query alone: an object may have any name.
func dryRun(uri string) bool {
	_, query, _ := strings.Cut(uri, "?")
	return strings.Contains(query, "dryRun=")
}

func scanUser(b []byte, i int, u *User) int {
	return members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "username":
			u.Name = text(b, i)
		case "uid":
			u.UID = text(b, i)
		case "groups":
			return texts(b, i, &u.Groups)
		}
		return pass
	})
}

func (e *Event) scanReference(b []byte, i int) int {
	return members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "apiGroup":
			e.Group = text(b, i)
		case "resource":
			e.Resource = text(b, i)
		case "subresource":
			e.Subresource = text(b, i)
		case "namespace":
			e.Namespace = text(b, i)
		case "name":
			e.Name = text(b, i)
		case "uid":
			e.RefUID = text(b, i)
		case "resourceVersion":
			e.ResourceVersion = text(b, i)
		}
		return pass
	})
}

func (e *Event) scanStatus(b []byte, i int) int {
	return members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "code":
			e.Code = number(b, i)
		case "details":
			return scanDetails(b, i, &e.DeletedUID)
		}
		return pass
	})
}

func scanDetails(b []byte, i int, uid *string) int {
	return members(b, i, func(key []byte, i int) int {
		if string(key) == "uid" {
			*uid = text(b, i)
		}
		return pass
	})
}

func (e *Event) scanAnnotations(b []byte, i int) int {
	return members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case truncated:
			e.Truncated = true
		case notedUID:
			e.NotedUID = text(b, i)
		case notedReplaces:
			e.Replaces = text(b, i)
		case notedUnchanged:
			e.Unchanged = text(b, i)
		}
		return pass
	})
}
