package signals

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/nearest"
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

// InvalidError is returned for a request that can be none of any signal, and is kept nowhere.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

// form has the members of the requests of a kind, beside "signal" and "id".
type form struct {
	needed  [][]string // of each group exactly one member is needed
	allowed []string   // members that may be there
}

var (
	formOfSink    = form{needed: [][]string{{"sink", "rule"}}}
	formOfLetters = form{needed: [][]string{{"sink"}, {"offsets", "all"}}}

	forms = map[string]form{ // by kind
		string(Pause):              {formOfSink.needed, []string{"for"}},
		string(Resume):             formOfSink,
		string(Snapshot):           {[][]string{{"sink"}, {"select", "all"}}, []string{"namespace", "objects"}},
		string(Replay):             {needed: [][]string{{"sink"}, {"offset", "from"}}},
		string(Watermark):          {needed: [][]string{{"sink"}}},
		string(Cancel):             {needed: [][]string{{"target"}}},
		string(RetryDeadLetters):   formOfLetters,
		string(DiscardDeadLetters): formOfLetters,
	}
)

func (f form) members() []string {
	return slices.Concat(slices.Concat(f.needed...), f.allowed, []string{"signal", "id"})
}

// values decode the value of each member but "signal". Their errors name what is expected.
var values = map[string]func(r *Request, value json.RawMessage) error{
	"id": func(r *Request, v json.RawMessage) error {
		return decodeText(v, &r.ID, isID, fmt.Sprintf("1 to %d printable characters of ASCII without blanks", maxIDBytes))
	},
	"sink":      func(r *Request, v json.RawMessage) error { return decodeText(v, &r.Sink, isName, aName) },
	"rule":      func(r *Request, v json.RawMessage) error { return decodeText(v, &r.Rule, isName, aName) },
	"namespace": func(r *Request, v json.RawMessage) error { return decodeText(v, &r.Namespace, isName, aName) },
	"target":    func(r *Request, v json.RawMessage) error { return decodeText(v, &r.Target, isID, "the ID of a signal") },
	"offset":    func(r *Request, v json.RawMessage) error { return decodeOffset(v, &r.Offset) },
	"offsets":   func(r *Request, v json.RawMessage) error { return decodeList(v, &r.Offsets, decodeOffset) },
	"for": func(r *Request, v json.RawMessage) (err error) {
		var text string
		if unmarshal(v, &text) {
			if r.For, err = time.ParseDuration(text); err == nil && r.For > 0 {
				return nil
			}
		}
		return errors.New(`a duration above 0, such as "30m"`)
	},
	"from": func(r *Request, v json.RawMessage) error {
		if !unmarshal(v, &r.From) || r.From.IsZero() {
			return errors.New(`a time such as "2026-11-26T15:04:05Z"`)
		}
		r.From = r.From.UTC()
		return nil
	},
	"all": func(r *Request, v json.RawMessage) error {
		if r.All = string(v) == "true"; !r.All {
			return errors.New("true, or no such member")
		}
		return nil
	},
	"select": func(r *Request, v json.RawMessage) error {
		return decodeList(v, &r.Select, func(v json.RawMessage, to *string) error { return decodeText(v, to, isName, aName) })
	},
	"objects": func(r *Request, v json.RawMessage) error {
		return decodeList(v, &r.Objects, func(v json.RawMessage, to *string) error {
			return decodeText(v, to, IsObject, "an object: NAMESPACE/NAME of a namespaced one, or NAME")
		})
	},
}

var aName = fmt.Sprintf("a name of at most %d bytes", maxNameBytes)

// DecodeRequest reads a request in JSON. It accepts what belongs to the kind of signal, each member once and by its exact
// name, and nothing else: what a sender misspells must not count as absent. Errors are an [InvalidError].
func DecodeRequest(text []byte) (r Request, err error) {
	members, err := splitMembers(text)
	if err != nil {
		return r, &InvalidError{"this is no signal: " + err.Error()}
	}
	if err := r.decodeMembers(members); err != nil {
		return Request{}, &InvalidError{err.Error()}
	}
	return r, nil
}

func (r *Request) decodeMembers(members map[string]json.RawMessage) error {
	kinds := slices.Sorted(maps.Keys(forms))
	var name string
	if members["signal"] == nil {
		for other := range members {
			if suggest(other, []string{"signal"}) != "" {
				return fmt.Errorf("a request has no member %q, did you mean \"signal\"?", keepText(other, maxIDBytes))
			}
		}
		return errors.New(`"signal" is missing; there are: ` + strings.Join(kinds, ", "))
	}
	_ = json.Unmarshal(members["signal"], &name) // another type of value is no kind
	f, found := forms[name]
	if !found {
		return fmt.Errorf("this exporter knows no signal %s%s; there are: %s", short(members["signal"]), suggest(name, kinds), strings.Join(kinds, ", "))
	}
	r.Kind = Kind(name)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.Contains(f.members(), name) {
			return fmt.Errorf("a signal %s has no member %q%s; it has: %s", r.Kind, keepText(name, maxIDBytes), suggest(name, f.members()), strings.Join(f.members(), ", "))
		}
		if name == "signal" {
			continue
		}
		if err := values[name](r, members[name]); err != nil {
			return fmt.Errorf("%q is %s; expected %w", name, short(members[name]), err)
		}
	}
	return f.checkNeeded(members)
}

// checkNeeded checks that there is one member of each group that is needed.
func (f form) checkNeeded(members map[string]json.RawMessage) error {
	for _, group := range f.needed {
		given := slices.DeleteFunc(slices.Clone(group), func(name string) bool { return members[name] == nil })
		switch {
		case len(given) > 1:
			return fmt.Errorf("%q and %q exclude each other", given[0], given[1])
		case len(given) == 1:
		case slices.Contains(group, "all"):
			return fmt.Errorf("it names nothing: %q is missing, or \"all\": true", group[0])
		default:
			return fmt.Errorf(`"%s" is missing`, strings.Join(group, `" or "`))
		}
	}
	return nil
}

// suggest returns the nearest of several names, to follow other text; "" if none is near.
func suggest(name string, names []string) string {
	if near := nearest.Name(name, names); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}

// short returns the beginning of a value, for messages.
func short(value json.RawMessage) string { return keepText(string(value), maxIDBytes) }

// splitMembers returns the values of the members of an object, each of which has a name of its own.
func splitMembers(text []byte) (map[string]json.RawMessage, error) {
	var object json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	if !utf8.Valid(text) {
		return nil, errors.New("it is not in UTF-8")
	}
	members, d := map[string]json.RawMessage{}, json.NewDecoder(bytes.NewReader(text))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name := token.(string) // the syntax has been checked
		switch {
		case members[name] != nil:
			return nil, fmt.Errorf("it has the member %q twice", keepText(name, maxIDBytes))
		case len(members) > len(values):
			return nil, errors.New("it has more members than there are")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		members[name] = value
	}
	return members, nil
}

// unmarshal decodes a value that is of the type of to, and not null.
func unmarshal[T any](value json.RawMessage, to *T) bool {
	return value[0] != 'n' && json.Unmarshal(value, to) == nil
}

func decodeText(value json.RawMessage, to *string, valid func(string) bool, expected string) error {
	if !unmarshal(value, to) || !valid(*to) {
		return errors.New(expected)
	}
	return nil
}

func decodeOffset(value json.RawMessage, to *uint64) error {
	if !unmarshal(value, to) || *to == 0 {
		return errors.New("an offset, a whole number from 1 on")
	}
	return nil
}

func decodeList[T any](value json.RawMessage, to *[]T, decode func(json.RawMessage, *T) error) error {
	wrong := fmt.Errorf("a list of 1 to %d: an empty one names nothing, and more need several signals", MaxEntries)
	d := json.NewDecoder(bytes.NewReader(value))
	if first, err := d.Token(); err != nil || first != json.Delim('[') || !d.More() {
		return wrong
	}
	for d.More() {
		var element json.RawMessage
		if err := d.Decode(&element); err != nil || len(*to) == MaxEntries {
			return wrong
		}
		var one T
		if err := decode(element, &one); err != nil {
			return fmt.Errorf("a list in which each is %w, and number %d is %s", err, len(*to)+1, short(element))
		}
		*to = append(*to, one)
	}
	return nil
}
