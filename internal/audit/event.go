package audit

import "time"

// Event is what is kept of one audit event. It owns its memory.
type Event struct {
	ID    string `json:"id,omitempty"` // auditID; the client may choose it, so two events may share one
	Stage string `json:"-"`
	Verb  string `json:"verb"`
	Code  int    `json:"code"`

	User         string   `json:"user"`           // authenticated user name
	UserUID      string   `json:"uid,omitempty"`  // as the authenticator tells it
	Groups       []string `json:"grp,omitempty"`  // as the authenticator tells them
	Impersonated *User    `json:"as,omitempty"`   // on whose behalf User acted; nil for nobody's
	UserAgent    string   `json:"ua,omitempty"`   // claimed by the client
	SourceIPs    []string `json:"ips,omitempty"`  // claimed by the client, but for the last
	DryRun       bool     `json:"-"`              // nothing was stored
	Received     Time     `json:"rcv,omitzero"`   // by the API server's clock
	Done         Time     `json:"done,omitzero"`  // when it had answered, by the same clock
	Truncated    bool     `json:"trunc,omitzero"` // the API server left the bodies out, because they were too large

	// What the request names. UID and ResourceVersion come from its body: of an update, the version that it insists on.
	Group           string `json:"g,omitempty"`
	Resource        string `json:"r"`
	Subresource     string `json:"sub,omitempty"`
	Namespace       string `json:"ns,omitempty"`
	Name            string `json:"n,omitempty"`
	RefUID          string `json:"ruid,omitempty"`
	ResourceVersion string `json:"rrv,omitempty"`

	DeletedUID string   `json:"del,omitempty"`   // responseStatus.details.uid: the object that an immediate delete removed
	Answer     Object   `json:"ans,omitzero"`    // responseObject
	Items      []Object `json:"items,omitempty"` // of a list that was answered with

	// What the admission policy of kubecdc notes, at every level.
	NotedUID string `json:"nuid,omitempty"` // of the object
	Replaces string `json:"nrep,omitempty"` // the version that the write began with; "" for a create, and without the policy
	// The version in which an attempt of an update found what it was about to write; "" where each attempt had something to
	// change, and without the policy.
	Unchanged string `json:"nsame,omitempty"`
}

// User is an impersonated user.
type User struct {
	Name   string   `json:"name"`
	UID    string   `json:"uid,omitempty"`
	Groups []string `json:"grp,omitempty"`
}

// Object is the identity of an object in an answer.
type Object struct {
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"rv,omitempty"`
	Deleting        bool   `json:"del,omitempty"`   // has a deletionTimestamp
	Held            bool   `json:"held,omitempty"`  // has finalizers
	Grace           bool   `json:"grace,omitempty"` // has time left until it is deleted
}

// Time is nanoseconds since 1970; 0 where an event does not tell.
type Time int64

// parseTime reads a timestamp of an event.
func parseTime(text string) Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0
	}
	return Time(t.UnixNano())
}

// Time returns t for people, in UTC.
func (t Time) Time() time.Time { return time.Unix(0, int64(t)).UTC() }

// Complete is the stage of a request that was answered whole.
const Complete = "ResponseComplete"

// IsWrite says whether the request may have changed a stored object: it succeeded, was no dry run and no read.
func (e *Event) IsWrite() bool {
	if e.Stage != Complete || e.Code/100 != 2 || e.DryRun || e.Resource == "" || e.Subresource == "token" {
		return false
	}
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// Actor is the identity that acted: the user, and whom it impersonated. It is the same for the same identity only.
func (e *Event) Actor() string {
	if e.Impersonated == nil {
		return e.User
	}
	return e.User + "\x00" + e.Impersonated.Name
}
