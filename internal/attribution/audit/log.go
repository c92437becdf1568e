package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// StoreEvents stores events of one origin and returns when they are durable. place and position, unless place is empty, are
// stored in the same commit. It does not keep the slice.
type StoreEvents func(ctx context.Context, origin string, events []Event, place, position string) error

// RecordLoss records that events were lost between since and now, for a reason in one sentence. The record is durable when
// it returns nil. since is zero if it is not known.
type RecordLoss func(ctx context.Context, since time.Time, reason string) error

// skipValue is the result of a callback that leaves the value to be skipped.
const skipValue = 0

// scanMembers calls f for each member of the object that starts at i, with the index of the value. f returns the index
// after the value, skipValue, or a negative index. A value that is not an object is skipped. It returns the index after the
// object.
func scanMembers(b []byte, i int, f func(key []byte, i int) int) int {
	if i >= len(b) || b[i] != '{' {
		return rawjson.SkipTrustedValue(b, i)
	}
	m := rawjson.EnterObject(b, i)
	for m.Next() {
		if m.I >= len(b) {
			return rawjson.FailAt(len(b))
		}
		if end := f(m.Key, m.I); end != skipValue {
			m.I = end
		} else {
			m.I = rawjson.SkipTrustedValue(b, m.I)
		}
	}
	return m.I
}

// scanElements calls f with the index of each element of the array that starts at i. A value that is not an array is
// skipped.
func scanElements(b []byte, i int, f func(i int) int) int {
	if i >= len(b) || b[i] != '[' {
		return rawjson.SkipTrustedValue(b, i)
	}
	e := rawjson.EnterArray(b, i)
	for e.Next() {
		e.I = f(e.I)
	}
	return e.I
}

// stringAt returns a copy of the string at i; "" if it is not a string.
func stringAt(b []byte, i int) (s string) {
	readString(b, i, &s)
	return s
}

// readString sets s to a copy of the string at i, or to "" if it is not a string. It returns the index after the value.
func readString(b []byte, i int, s *string) int {
	text, end := textAt(b, i)
	*s = string(text)
	return end
}

// readWord is readString without a copy of a word that most events have.
func readWord(b []byte, i int, s *string) int {
	text, end := textAt(b, i)
	for _, word := range commonWords {
		if string(text) == word {
			*s = word
			return end
		}
	}
	*s = string(text)
	return end
}

// textAt returns the text of the string at i, which may alias b, or nil if it is not a string, and the index after the
// value.
func textAt(b []byte, i int) (text []byte, end int) {
	if i < len(b) && b[i] == '"' {
		if end = rawjson.SkipString(b, i); end > 0 {
			return rawjson.Unquote(b[i:end]), end
		}
	}
	return nil, rawjson.SkipTrustedValue(b, i)
}

var commonWords = [...]string{Complete, "patch", "update", "create", "delete", "get", "list", "watch"}

// usualStrings is how many groups or addresses most users have at most.
const usualStrings = 4

func appendStrings(b []byte, i int, list *[]string) int {
	return scanElements(b, i, func(i int) int {
		text, end := textAt(b, i)
		if len(text) > 0 {
			if *list == nil {
				*list = make([]string, 0, usualStrings)
			}
			*list = append(*list, string(text))
		}
		return end
	})
}

// intAt returns the integer at i; 0 if it is not one.
func intAt(b []byte, i int) int {
	end := rawjson.SkipTrustedValue(b, i)
	if end < 0 || end-i > 18 {
		return 0
	}
	n, err := strconv.Atoi(string(b[i:end]))
	if err != nil {
		return 0
	}
	return n
}

// hasElements reports whether the value at i is a non-empty array.
func hasElements(b []byte, i int) bool {
	if b[i] != '[' {
		return false
	}
	i = rawjson.SkipSpace(b, i+1)
	return i < len(b) && b[i] != ']'
}

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

// usualSize is less than the size of most events, in bytes. What is allocated for a list by that is smaller than its text.
const usualSize = 1 << 10

func appendItems(events []Event, b []byte, at int) ([]Event, error) {
	all := slices.Grow(events, len(b)/usualSize)
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

// eventScan is one event and what only its scan needs. Its slices alias the text of the event.
type eventScan struct {
	*Event
	version []byte // apiVersion
	options requestOptions
	failed  bool         // the answer is a Status of a failure
	body    int          // index of requestObject; 0: none
	answer  responseScan // of responseObject
}

var ownVersion = []byte(apiVersion)

// scanEvent reads the event that starts at i into the empty e. It returns the index after it, or a negative index on an
// error.
func scanEvent(b []byte, i int, e *Event) int {
	s := eventScan{Event: e, version: ownVersion}
	end := scanMembers(b, i, func(key []byte, i int) int { return s.scanMember(b, string(key), i) })
	if string(s.version) != apiVersion {
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
		s.version, i = textAt(b, i)
		return i
	case "level":
		level, end := textAt(b, i)
		s.options.hasBodies = string(level) == "Request" || string(level) == "RequestResponse"
		return end
	case "auditID":
		return readString(b, i, &e.ID)
	case "stage":
		return readWord(b, i, &e.Stage)
	case "verb":
		return readWord(b, i, &e.Verb)
	case "requestURI":
		s.options.uri, i = textAt(b, i)
		return i
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
				return readString(b, i, &e.Constraint)
			}
			return skipValue
		})
	case "sourceIPs":
		return appendStrings(b, i, &e.SourceIPs)
	case "userAgent":
		return readString(b, i, &e.UserAgent)
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
			return readString(b, i, &u.Name)
		case "uid":
			return readString(b, i, &u.UID)
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
			return readString(b, i, &e.Group)
		case "resource":
			return readString(b, i, &e.Resource)
		case "subresource":
			return readString(b, i, &e.Subresource)
		case "namespace":
			return readString(b, i, &e.Namespace)
		case "name":
			return readString(b, i, &e.Name)
		case "uid":
			return readString(b, i, &e.RefUID)
		case "resourceVersion":
			return readString(b, i, &e.ResourceVersion)
		}
		return skipValue
	})
}

func (s *eventScan) scanStatus(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "status":
			text, end := textAt(b, i)
			s.failed = string(text) == "Failure"
			return end
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
			return readString(b, i, uid)
		}
		return skipValue
	})
}

func (s *eventScan) scanAnnotations(b []byte, i int) int {
	e := s.Event
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case notedDryRunKey:
			return readString(b, i, &s.options.noted)
		case truncatedKey:
			e.Truncated = true
		case notedUIDKey:
			return readString(b, i, &e.NotedUID)
		case notedReplacesKey:
			return readString(b, i, &e.Replaces)
		case notedUnchangedKey:
			return readString(b, i, &e.Unchanged)
		}
		return skipValue
	})
}
