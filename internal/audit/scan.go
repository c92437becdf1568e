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

// Each calls f for every event of an EventList, or for the one event that b is, in order, until f returns an error, which it
// returns. b is not kept.
func Each(b []byte, f func(Event) error) error {
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
		return malformed(rawjson.Fail(m.I))
	case rawjson.SkipSpace(b, m.I) != len(b):
		return malformed(m.I)
	case items < 0:
		e, err := Scan(b)
		if err != nil {
			return err
		}
		return f(e)
	case version != apiVersion:
		return fmt.Errorf("%w: the list has another apiVersion", ErrMalformed)
	}
	return eachItem(b, items, f)
}

func eachItem(b []byte, at int, f func(Event) error) error {
	var failed error
	end := elements(b, at, func(i int) int {
		e, end := scanEvent(b, i)
		if end >= 0 {
			if failed = f(e); failed != nil {
				return rawjson.Fail(i)
			}
		}
		return end
	})
	if failed != nil {
		return failed
	}
	if end < 0 {
		return malformed(rawjson.Fail(end))
	}
	return nil
}

// Scan reads one event.
func Scan(b []byte) (Event, error) {
	e, end := scanEvent(b, rawjson.SkipSpace(b, 0))
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

// scanEvent reads the event that begins at i and returns the index behind it, or a negative one.
func scanEvent(b []byte, i int) (Event, int) {
	var e Event
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
		return Event{}, rawjson.Fail(i)
	}
	if e.Verb != "deletecollection" {
		e.Items = nil // of an object that has a member of this name
	}
	return e, end
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
