package audit

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Event holds the facts of one audit event. It owns its memory.
type Event struct {
	ID    string `json:"id,omitempty"` // auditID; the client may choose it, so it is not unique
	Stage string `json:"-"`
	Verb  string `json:"verb"`
	Code  int    `json:"code"`

	User         string   `json:"user"`          // authenticated user name
	UserUID      string   `json:"uid,omitempty"` // from the authenticator
	Groups       []string `json:"grp,omitempty"` // from the authenticator
	Impersonated *User    `json:"as,omitempty"`  // the identity that User acted as; nil: its own
	Constraint   string   `json:"imc,omitempty"` // verb of the constrained impersonation that allowed it
	UserAgent    string   `json:"ua,omitempty"`  // claimed by the client
	SourceIPs    []string `json:"ips,omitempty"` // claimed by the client, except for the last one
	Outcome      Outcome  `json:"out,omitempty"`
	Received     Time     `json:"rcv,omitzero"`   // by the API server's clock
	Done         Time     `json:"done,omitzero"`  // when it answered, by the same clock
	Truncated    bool     `json:"trunc,omitzero"` // the API server omitted the bodies because of their size

	// The object that the request names (objectRef). RefUID is a UID that the API server compared with the object: of a
	// binding, and of the preconditions of a delete or an eviction. ResourceVersion comes from the request body; the version
	// of an update is its precondition.
	Group           string `json:"g,omitempty"`
	Resource        string `json:"r"`
	Subresource     string `json:"sub,omitempty"`
	Namespace       string `json:"ns,omitempty"`
	Name            string `json:"n,omitempty"`
	RefUID          string `json:"ruid,omitempty"`
	ResourceVersion string `json:"rrv,omitempty"`

	DeletedUID string   `json:"del,omitempty"`   // responseStatus.details.uid: the object that an immediate delete removed
	Answer     Object   `json:"ans,omitzero"`    // responseObject
	Items      []Object `json:"items,omitempty"` // of a list in responseObject

	// Annotations of the kubecdc admission policy, which are there at every audit level.
	NotedUID string `json:"nuid,omitempty"` // of the object
	Replaces string `json:"nrep,omitempty"` // the version that the write started from; "" for a create, and without the policy
	// The version that already had the content which an attempt of an update was about to write; "" if each attempt changed
	// something, and without the policy.
	Unchanged string `json:"nsame,omitempty"`
}

// Outcome is what the event proves about the effect of its request.
type Outcome uint8

// The outcomes.
const (
	OutcomeUnknown Outcome = iota // it may have been a dry run
	Stored                        // it succeeded, and was not a dry run
	NotStored                     // it failed, or was a dry run
)

// User is an impersonated user.
type User struct {
	Name   string   `json:"name"`
	UID    string   `json:"uid,omitempty"`
	Groups []string `json:"grp,omitempty"`
}

// Object is the identity of an object in a response.
type Object struct {
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"rv,omitempty"`
	Deleting        bool   `json:"del,omitempty"`   // has a deletionTimestamp
	Held            bool   `json:"held,omitempty"`  // has finalizers
	Grace           bool   `json:"grace,omitempty"` // has a grace period above zero
}

// Time is in Unix nanoseconds; 0 if the event does not have it.
type Time int64

// parseTime parses a timestamp of an event; 0 if it is malformed.
func parseTime(text string) Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0
	}
	return Time(t.UnixNano())
}

// Time returns t in UTC.
func (t Time) Time() time.Time { return time.Unix(0, int64(t)).UTC() }

// persistedSubresources are the subresources that change their object, and that answer with it or with a Status.
// Others answer with what the client sent, such as a token request, or with anything, such as a proxy.
var persistedSubresources = map[string]bool{
	"": true, "status": true, "scale": true, "finalize": true, "approval": true, "ephemeralcontainers": true, "resize": true,
	binding: true, eviction: true,
}

const (
	binding  = "binding"
	eviction = "eviction"
)

// Complete is the stage of a request with a complete response.
const Complete = "ResponseComplete"

// IsWrite reports whether the event is of a write that may have changed a stored object.
func (e *Event) IsWrite() bool {
	if e.Stage != Complete || e.Code/100 != 2 || e.Outcome == NotStored || e.Resource == "" || !persistedSubresources[e.Subresource] {
		return false
	}
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// Actor returns a key of the acting identity: the user and the impersonated user. It is equal only for the same identity.
func (e *Event) Actor() string {
	if e.Impersonated == nil {
		return e.User
	}
	return e.User + "\x00" + e.Impersonated.Name
}

const (
	maxUnpacked = 32 << 20 // of a compressed record, in bytes

	azureCategory    = "kube-audit" // and kube-audit-admin
	cloudWatchStream = "kube-apiserver-audit"
)

// AppendRecord appends the audit events of one record or line of a log to events, and returns how much of it is malformed. A
// record has events, or lists of them, as an API server writes them, diagnostic records of AKS, as in an Event Hub, or a
// subscription batch of EKS, with or without gzip. Other logs in such an envelope are skipped. A truncated event is appended
// as a write by an unknown user at the time of the envelope. It does not keep b.
func AppendRecord(events []Event, b []byte) (all []Event, malformed int) {
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		var err error
		if b, err = unpack(b); err != nil {
			return events, 1
		}
	}
	u := unwrapping{events: events}
	for i := rawjson.SkipSpace(b, 0); i < len(b); i = rawjson.SkipSpace(b, i) {
		if i = u.appendValue(b, i); i < 0 {
			break
		}
	}
	return u.events, u.malformed
}

var errTooLarge = errors.New("the record is too large without its compression")

// unpack decompresses one or more gzip members within maxUnpacked.
func unpack(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err == nil && len(all) > maxUnpacked {
		err = errTooLarge
	}
	return all, err
}

type unwrapping struct {
	events    []Event
	malformed int
}

// appendValue appends the events of the value at i, and returns the index after it, or a negative index if the rest of b is
// not usable.
func (u *unwrapping) appendValue(b []byte, i int) int {
	var e Event // one pass for what most logs have
	if end := scanEvent(b, i, &e); end > 0 && e.Stage != "" {
		u.events = append(u.events, e)
		return end
	}
	at := map[string]int{}
	end := scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "records", "logEvents", "logStream", "messageType":
			at[string(key)] = i
		}
		return skipValue
	})
	records, isAzure := at["records"]
	_, isCloudWatch := at["messageType"]
	switch {
	case end < 0:
		u.appendText(b[i:], 0)
	case b[i] != '{':
		u.malformed++
	case isAzure:
		return u.appendAzure(b, records, end)
	case isCloudWatch:
		return u.appendCloudWatch(b, at, end)
	default: // an event or a list as an API server writes it
		if all, err := Append(u.events, b[i:end]); err == nil {
			u.events = all
		} else {
			u.appendText(b[i:end], 0)
		}
	}
	return end
}

// appendText appends the event in a text, which may have been truncated. at is the time of its envelope, 0 if it has none.
func (u *unwrapping) appendText(text []byte, at Time) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return
	}
	e, err := Scan(text)
	if err != nil {
		if e = salvage(text, at); !e.IsWrite() {
			u.malformed++
			return
		}
	}
	u.events = append(u.events, e)
}

// appendAzure appends the events of the array at i, each the member properties.log of a record.
func (u *unwrapping) appendAzure(b []byte, i, end int) int {
	scanElements(b, i, func(i int) int {
		var category, log string
		var at Time
		after := scanMembers(b, i, func(key []byte, i int) int {
			switch string(key) {
			case "category":
				category = stringAt(b, i)
			case "time":
				at = parseTime(stringAt(b, i))
			case "properties":
				return scanMembers(b, i, func(key []byte, i int) int {
					if string(key) == "log" {
						log = stringAt(b, i)
					}
					return skipValue
				})
			}
			return skipValue
		})
		if category == azureCategory || category == azureCategory+"-admin" {
			u.appendText([]byte(log), at)
		}
		return after
	})
	return end
}

// appendCloudWatch appends the events of a batch, each the message of one of its log events.
func (u *unwrapping) appendCloudWatch(b []byte, at map[string]int, end int) int {
	events, found := at["logEvents"]
	if stream, named := at["logStream"]; !found || stringAt(b, at["messageType"]) != "DATA_MESSAGE" ||
		named && !strings.HasPrefix(stringAt(b, stream), cloudWatchStream) {
		return end // a control message, or another log of the cluster
	}
	scanElements(b, events, func(i int) int {
		var message string
		var ms int
		after := scanMembers(b, i, func(key []byte, i int) int {
			switch string(key) {
			case "message":
				message = stringAt(b, i)
			case "timestamp":
				ms = intAt(b, i)
			}
			return skipValue
		})
		u.appendText([]byte(message), Time(ms)*1e6)
		return after
	})
	return end
}

// salvage returns what is known of a truncated event: which write it was, and when. Its user and its effect are not.
func salvage(text []byte, at Time) Event {
	var e Event
	s := eventScan{Event: &e}
	scanMembers(text, 0, func(key []byte, i int) int { return s.scanMember(text, string(key), i) })
	if string(s.version) != apiVersion || e.Name == "" {
		return Event{}
	}
	cut := Event{
		ID: e.ID, Stage: e.Stage, Verb: e.Verb, Code: e.Code, Truncated: true,
		Group: e.Group, Resource: e.Resource, Subresource: e.Subresource, Namespace: e.Namespace, Name: e.Name,
		Received: e.Received, Done: max(e.Done, at),
	}
	if s.failed {
		cut.Outcome = NotStored
	}
	if cut.Code < 100 {
		cut.Code = 200 // truncated before its end: the write may have succeeded
	}
	return cut
}
