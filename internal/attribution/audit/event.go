package audit

import "time"

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
