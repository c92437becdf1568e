package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// maxBatch is the number of events stored in one call.
const maxBatch = 256

// StoreEvents stores events of one origin and returns when they are durable. place and position, unless place is empty, are
// stored in the same commit. It does not keep the slice.
type StoreEvents func(ctx context.Context, origin string, events []Event, place, position string) error

// RecordLoss records that events were lost between since and now, for a reason in one sentence. The record is durable when
// it returns nil. since is zero if it is not known.
type RecordLoss func(ctx context.Context, since time.Time, reason string) error

// Options are the dependencies of a [Log]. All are required.
type Options struct {
	StoreEvents StoreEvents
	// StoredPosition returns the position that StoreEvents stored last under a name; "" where nothing is stored.
	StoredPosition func(name string) (string, error)
	RecordLoss     RecordLoss
	Logger         *slog.Logger
}

// Log is the common part of the resumable intakes: a file, or a topic.
type Log struct {
	Options
	name      string
	remedy    string
	condition *condition.Condition

	malformed atomic.Uint64
}

// NewLog returns a log. remedy is shown while it cannot be read.
func NewLog(name, remedy string, o Options) *Log {
	c := condition.New(o.Logger.With("audit log", name), "audit/"+strings.TrimPrefix(name, "/"), condition.Problem{})
	return &Log{Options: o, name: name, remedy: remedy, condition: c}
}

// Name is the path of the file, or the name of the topic.
func (l *Log) Name() string { return l.name }

// Status returns whether the log can be read, and the number of malformed lines and records.
func (l *Log) Status() (status condition.Status, malformed uint64) {
	return l.condition.Status(), l.malformed.Load()
}

// UpdateCondition sets whether the log can be read; a nil err means that it can.
func (l *Log) UpdateCondition(err error) {
	if err == nil {
		l.condition.Clear()
		return
	}
	l.condition.Update(condition.Problem{Code: condition.AuditUnreadable, Cause: err.Error(), Remedy: l.remedy})
}

// Part is a portion of a log that is stored at once.
type Part struct {
	Origin    string // the API server that wrote it; "" if not known
	Events    []Event
	Malformed int       // lines or records that are not audit events
	Since     time.Time // response time of the newest event before the part; zero if not known
	Place     string
	Position  string // after the part
}

// NewestEvent returns the response time of the newest event of the part, or Since if that is later.
func (p *Part) NewestEvent() time.Time {
	newest := p.Since
	for i := range p.Events {
		if done := p.Events[i].Done; done != 0 && done.Time().After(newest) {
			newest = done.Time()
		}
	}
	return newest
}

// StorePart stores a part and records a loss for its malformed lines. The position is stored last, so a crash in between
// repeats events and loses none.
func (l *Log) StorePart(ctx context.Context, p Part) error {
	if p.Malformed > 0 {
		l.malformed.Add(uint64(p.Malformed))
		reason := "the audit log " + l.name + " has lines or records that are not audit events, or too long"
		if err := l.StoreLoss(ctx, p.Since, reason); err != nil {
			return err
		}
	}
	for len(p.Events) > maxBatch {
		if err := l.StoreEvents(ctx, p.Origin, p.Events[:maxBatch], "", ""); err != nil {
			return &storeError{err}
		}
		p.Events = p.Events[maxBatch:]
	}
	if err := l.StoreEvents(ctx, p.Origin, p.Events, p.Place, p.Position); err != nil {
		return &storeError{err}
	}
	return nil
}

// StoreLoss records a loss. Call it before storing the position after the lost events.
func (l *Log) StoreLoss(ctx context.Context, since time.Time, reason string) error {
	if err := l.RecordLoss(ctx, since, reason); err != nil {
		return &storeError{err}
	}
	return nil
}

// storeError wraps an error of StoreEvents or RecordLoss, which ends the intake.
type storeError struct{ error }

// PollUntilDone calls read at intervals, and report with its result, until ctx ends or events cannot be stored.
func PollUntilDone(ctx context.Context, every time.Duration, read func(context.Context) error, report func(error)) error {
	for {
		err := read(ctx)
		var stored *storeError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &stored):
			return stored.error
		}
		report(err)
		if ratelimit.Sleep(ctx, every) != nil {
			return context.Cause(ctx)
		}
	}
}

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
