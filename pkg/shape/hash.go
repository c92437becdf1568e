package shape

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Values of HashOptions.Scope.
const (
	scopeObject = "object"
	scopeGlobal = "global"
)

// HashOptions configures the hashes of redact: hmac.
type HashOptions struct {
	// Which equal values have equal hashes: object (values at one path of one object) or global (all values that rules with
	// this scope redact). With global, a user with permission to write any value and to read the stream can test guesses of
	// all other values.
	Scope string `mapstructure:"scope"`
}

const (
	hashPrefix  = "hmac-sha256:"
	hashLength  = 16 // bytes of the hash in the output; collisions are negligible
	keyIDLength = 4  // bytes of the key ID
)

// hasher computes the hashes that replace values: "hmac-sha256:", the key ID, ":" and the hash. Each scope has its own key,
// derived from the configured one, so that hashes of different scopes cannot be compared. Safe for concurrent use.
type hasher struct {
	global bool
	prefix string // of every hash, including the opening quote
	pool   sync.Pool
}

func newHasher(key []byte, scope string) *hasher {
	if scope == "" {
		scope = scopeObject
	}
	derived := deriveKey(key, "kubecdc redaction, scope "+scope)
	h := &hasher{global: scope == scopeGlobal, prefix: `"` + hashPrefix + keyIDOf(derived) + ":"}
	h.pool.New = func() any { return &keyedMAC{Hash: hmac.New(sha256.New, derived)} }
	return h
}

// keyIDOf returns the ID of a key. It identifies the key, as any hash does, but reveals nothing else about it.
func keyIDOf(key []byte) string {
	return hex.EncodeToString(deriveKey(key, "kubecdc redaction, key ID")[:keyIDLength])
}

func deriveKey(key []byte, purpose string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// hashValue returns the hash of a scalar as a JSON string. Strings are hashed by their text, so that escapes make no
// difference, and other scalars by their spelling. The object and the place of the value are included in the hash, unless
// the scope is global.
func (h *hasher) hashValue(value []byte, object string, place []byte) []byte {
	if value[0] == '"' {
		value = rawjson.Unquote(value)
	}
	m := h.pool.Get().(*keyedMAC)
	defer h.pool.Put(m)
	m.Reset()
	if !h.global { // length prefixes make the encoding of object and place unambiguous
		m.text = append(strconv.AppendInt(m.text[:0], int64(len(object)), 10), ':')
		m.text = append(strconv.AppendInt(append(m.text, object...), int64(len(place)), 10), ':')
		m.Write(append(m.text, place...))
	}
	m.Write(value)
	m.text = m.Sum(m.text[:0])
	out := append(make([]byte, 0, len(h.prefix)+2*hashLength+1), h.prefix...)
	return append(hex.AppendEncode(out, m.text[:hashLength]), '"')
}

// keyedMAC is an HMAC with a scratch buffer.
type keyedMAC struct {
	hash.Hash
	text []byte
}

// isOwnHash reports whether a stored value is a hash with this key and scope.
func (h *hasher) isOwnHash(quoted []byte) bool {
	return isHash(quoted) && bytes.HasPrefix(quoted, []byte(h.prefix))
}

// identityOf returns the identity that hashes of scope object include: the UID, or the key if there is none.
func identityOf(c *event.Change) string {
	if c.UID != "" {
		return c.UID
	}
	return c.Key()
}

// isHash reports whether a stored value is a hash, with this key or another one, which must not be hashed again. Hashes of
// earlier versions have no key ID.
func isHash(quoted []byte) bool {
	text, ok := bytes.CutPrefix(quoted, []byte(`"`+hashPrefix))
	if !ok {
		return false
	}
	text, ok = bytes.CutSuffix(text, []byte(`"`))
	if id, digits, keyed := bytes.Cut(text, []byte(":")); keyed {
		ok, text = ok && len(id) == 2*keyIDLength && isHex(id), digits
	}
	return ok && len(text) == 2*hashLength && isHex(text)
}

func isHex(digits []byte) bool {
	_, err := hex.Decode(make([]byte, len(digits)/2), digits)
	return err == nil
}
