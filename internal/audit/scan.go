package audit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// PolicyName is the name of the ValidatingAdmissionPolicy that adds the audit annotations of kubecdc.
const PolicyName = "kubecdc-identity"

const (
	apiVersion   = "audit.k8s.io/v1"
	truncatedKey = "audit.k8s.io/truncated"

	notedUIDKey       = PolicyName + "/uid"
	notedReplacesKey  = PolicyName + "/replaces"
	notedUnchangedKey = PolicyName + "/unchanged"
	notedDryRunKey    = PolicyName + "/dryRun"
)

// ErrMalformed is the error for bytes that are not an audit event of audit.k8s.io/v1. Its message has an offset and never
// quotes the bytes, which may hold secrets.
var ErrMalformed = errors.New("no audit event of audit.k8s.io/v1")

func malformedAt(at int) error { return fmt.Errorf("%w: wrong at byte %d", ErrMalformed, at) }

// Append appends every event of an EventList, or a single event, to events. It does not keep b. On an error it returns
// events unchanged.
func Append(events []Event, b []byte) ([]Event, error) {
	start := rawjson.SkipSpace(b, 0)
	m := rawjson.EnterObject(b, start)
	items := -1
	version := ""
	for m.Next() {
		switch string(m.Key) {
		case "items":
			items = m.I
		case "apiVersion":
			version = stringAt(b, m.I)
		}
		m.I = rawjson.SkipTrustedValue(b, m.I)
	}
	switch {
	case m.I < 0:
		return events, malformedAt(rawjson.FailAt(m.I))
	case rawjson.SkipSpace(b, m.I) != len(b):
		return events, malformedAt(m.I)
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
	end := scanElements(b, at, func(i int) int {
		all = append(all, Event{})
		return scanEvent(b, i, &all[len(all)-1])
	})
	if end < 0 {
		return events, malformedAt(rawjson.FailAt(end))
	}
	return all, nil
}

// Scan reads a single event.
func Scan(b []byte) (Event, error) {
	var e Event
	end := scanEvent(b, rawjson.SkipSpace(b, 0), &e)
	switch {
	case end < 0:
		return Event{}, malformedAt(rawjson.FailAt(end))
	case rawjson.SkipSpace(b, end) != len(b):
		return Event{}, malformedAt(end)
	case e.Stage == "":
		return Event{}, fmt.Errorf("%w: it has no stage", ErrMalformed)
	}
	return e, nil
}

// eventScan is one event and what only its scan needs.
type eventScan struct {
	*Event
	version string // apiVersion
	options requestOptions
	failed  bool         // the answer is a Status of a failure
	body    int          // index of requestObject; 0: none
	answer  responseScan // of responseObject
}

// scanEvent reads the event that starts at i into the empty e. It returns the index after it, or a negative index on an
// error.
func scanEvent(b []byte, i int, e *Event) int {
	s := eventScan{Event: e, version: apiVersion}
	end := scanMembers(b, i, func(key []byte, i int) int { return s.scanMember(b, string(key), i) })
	if s.version != apiVersion {
		return rawjson.FailAt(i)
	}
	if end < 0 || !e.IsWrite() {
		return end
	}
	if failed := s.setAnswer(b, &s.answer); failed < 0 {
		return failed
	}
	s.setOutcome(b)
	return end
}

// setOutcome sets the outcome, and the UID that a delete or an eviction requires. All members of the event have to be known.
func (s *eventScan) setOutcome(b []byte) {
	if s.Subresource != binding {
		s.RefUID = "" // the API server has not compared it
	}
	options := &s.options
	options.hasBodies = options.hasBodies && !s.Truncated
	if options.hasBody = s.body > 0; options.hasBody && (s.Subresource == eviction || strings.HasPrefix(s.Verb, "delete")) {
		s.scanBody(b, s.body, options)
	}
	if s.Outcome = options.outcome(s.Verb, s.Subresource); s.failed {
		s.Outcome = NotStored
	}
}

// scanMember reads the member with its value at i.
func (s *eventScan) scanMember(b []byte, key string, i int) int {
	e := s.Event
	switch key {
	case "apiVersion":
		s.version = stringAt(b, i)
	case "level":
		level := stringAt(b, i)
		s.options.hasBodies = level == "Request" || level == "RequestResponse"
	case "auditID":
		e.ID = stringAt(b, i)
	case "stage":
		e.Stage = stringAt(b, i)
	case "verb":
		e.Verb = stringAt(b, i)
	case "requestURI":
		s.options.uri = stringAt(b, i)
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
	case "authenticationMetadata":
		return scanMembers(b, i, func(key []byte, i int) int {
			if string(key) == "impersonationConstraint" {
				e.Constraint = stringAt(b, i)
			}
			return skipValue
		})
	case "sourceIPs":
		return appendStrings(b, i, &e.SourceIPs)
	case "userAgent":
		e.UserAgent = stringAt(b, i)
	case "requestReceivedTimestamp":
		e.Received = parseTime(stringAt(b, i))
	case "stageTimestamp":
		e.Done = parseTime(stringAt(b, i))
	case "objectRef":
		return e.scanReference(b, i)
	case "responseStatus":
		return s.scanStatus(b, i)
	case "requestObject":
		if b[i] == '{' {
			s.body = i
		}
	case "responseObject":
		return s.answer.scanBody(b, i)
	case "annotations":
		return s.scanAnnotations(b, i)
	}
	return skipValue
}

func scanUser(b []byte, i int, u *User) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "username":
			u.Name = stringAt(b, i)
		case "uid":
			u.UID = stringAt(b, i)
		case "groups":
			return appendStrings(b, i, &u.Groups)
		}
		return skipValue
	})
}

func (e *Event) scanReference(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "apiGroup":
			e.Group = stringAt(b, i)
		case "resource":
			e.Resource = stringAt(b, i)
		case "subresource":
			e.Subresource = stringAt(b, i)
		case "namespace":
			e.Namespace = stringAt(b, i)
		case "name":
			e.Name = stringAt(b, i)
		case "uid":
			e.RefUID = stringAt(b, i)
		case "resourceVersion":
			e.ResourceVersion = stringAt(b, i)
		}
		return skipValue
	})
}

func (s *eventScan) scanStatus(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "status":
			s.failed = stringAt(b, i) == "Failure"
		case "code":
			s.Code = intAt(b, i)
		case "details":
			return scanUID(b, i, &s.DeletedUID)
		}
		return skipValue
	})
}

func scanUID(b []byte, i int, uid *string) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		if string(key) == "uid" {
			*uid = stringAt(b, i)
		}
		return skipValue
	})
}

func (s *eventScan) scanAnnotations(b []byte, i int) int {
	e := s.Event
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case notedDryRunKey:
			s.options.noted = stringAt(b, i)
		case truncatedKey:
			e.Truncated = true
		case notedUIDKey:
			e.NotedUID = stringAt(b, i)
		case notedReplacesKey:
			e.Replaces = stringAt(b, i)
		case notedUnchangedKey:
			e.Unchanged = stringAt(b, i)
		}
		return skipValue
	})
}
