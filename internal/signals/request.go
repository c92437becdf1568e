package signals

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Request is what a client asks for. [DecodeRequest] has the rules of its members.
type Request struct {
	// ID is that of the signal, so that a request without an answer can be sent again; "": the exporter makes one.
	ID string `json:"id,omitempty"`

	Kind Kind          `json:"signal"`
	Sink string        `json:"sink,omitempty"`
	Rule string        `json:"rule,omitempty"` // of a pause or a resume: a rule in place of a sink
	For  time.Duration `json:"-"`              // of a pause; 0: until resumed

	All     bool     `json:"all,omitempty"`     // of dead letters and of a snapshot: in place of Offsets or Select
	Offsets []uint64 `json:"offsets,omitempty"` // of dead letters

	Select    []string `json:"select,omitempty"`    // of a snapshot: the resources
	Namespace string   `json:"namespace,omitempty"` // of a snapshot: the only namespace; "": all
	Objects   []string `json:"objects,omitempty"`   // of a snapshot: the only objects, "namespace/name" or "name"; nil: all

	Offset uint64    `json:"offset,omitempty"` // of a replay: the first change; 0: From decides
	From   time.Time `json:"from,omitzero"`    // of a replay without an offset: when the first change was observed, or later

	Target string `json:"target,omitempty"` // of a cancel: the ID of a signal; the sink is that of it
}

// MarshalJSON returns the request in JSON, as [DecodeRequest] reads it.
func (r Request) MarshalJSON() ([]byte, error) {
	type plain Request // without this method
	wire := struct {
		plain
		For string `json:"for,omitempty"`
	}{plain: plain(r)}
	if r.For != 0 {
		wire.For = r.For.String()
	}
	return json.Marshal(wire)
}

// Bounds of a request.
const (
	MaxEntries = 200 // of a list, such as the objects: they are stored with each scope that can have them

	maxNameBytes = 253
	maxObjectKey = 63 + 1 + 253 // of its namespace and its name
	maxIDBytes   = 64
)

// IsObject reports whether a snapshot can name an object by this key: "namespace/name", or "name".
func IsObject(key string) bool {
	namespace, name, namespaced := strings.Cut(key, "/")
	return len(key) <= maxObjectKey && isPrintable(key) && namespace != "" && (!namespaced || name != "" && !strings.Contains(name, "/"))
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) })
}

// isName reports whether text can be a name of something that is configured or watched.
func isName(text string) bool {
	return text != "" && len(text) <= maxNameBytes && isPrintable(text) && !strings.Contains(text, " ")
}

// isID reports whether a signal can have this ID. Those of its snapshots and replays begin with it, in records and headers.
func isID(text string) bool {
	return text != "" && len(text) <= maxIDBytes && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// idLength is how many characters the IDs have that we make.
const idLength = 10

// NewID returns an ID that no other signal has.
func NewID() string { return strings.ToLower(rand.Text()[:idLength]) }

// withID returns the request with an ID.
func (r Request) withID() Request {
	if r.ID == "" {
		r.ID = NewID()
	}
	return r
}

// fingerprint distinguishes requests of one ID that ask for different things.
func (r Request) fingerprint() string {
	r.ID = ""
	text, err := r.MarshalJSON()
	if err != nil {
		panic(fmt.Sprintf("a request is plain data: %v", err))
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// New returns the signal that a request makes.
func (r Request) New(now time.Time) Signal {
	r = r.withID()
	s := Signal{
		ID: r.ID, Kind: r.Kind, Sink: r.Sink, Rule: r.Rule, Created: now.UTC().Truncate(time.Millisecond), State: Active,
		Select: r.Select, Namespace: r.Namespace, Objects: r.Objects, Offset: r.Offset, From: r.From, Target: r.Target,
		Request: r.fingerprint(),
	}
	if r.Kind == Pause {
		s.Since = s.Created
		if r.For > 0 {
			s.Until = s.Created.Add(r.For)
		}
	}
	return s
}
