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

// What HashOptions.Scope asks for.
const (
	scopeObject = "object"
	scopeGlobal = "global"
)

// HashOptions say how hashes are made where redact is hmac.
type HashOptions struct {
	// Among which values equal ones have equal hashes: object, those at one place of one object; or global, all that any
	// rule with this scope redacts. With global, whoever may write a value anywhere and read the stream can test guesses of
	// every other one.
	Scope string `mapstructure:"scope"`
}

const (
	hashPrefix  = "hmac-sha256:"
	hashLength  = 16 // bytes of the hash that are written; enough to never meet by chance
	keyIDLength = 4  // bytes of the key's ID
)

// hasher makes the hashes that values are replaced by: "hmac-sha256:", the ID of the key, ":" and the hash. Each scope has
// a key of its own, derived from the configured one, so that hashes of one scope say nothing of those of another. Safe for
// concurrent use.
type hasher struct {
	global bool
	prefix string // of every hash, with its opening quote
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

// keyIDOf tells keys, and scopes, apart. Who has it can recognize the key, as they could by any hash, and learns nothing else
// of it.
func keyIDOf(key []byte) string {
	return hex.EncodeToString(deriveKey(key, "kubecdc redaction, key ID")[:keyIDLength])
}

func deriveKey(key []byte, purpose string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// hashValue returns the hash of a scalar as a JSON string: that of the text of a string, so that escapes make no difference, and
// of any other scalar as it is spelled. object and place say where it stands; they are part of what is hashed unless the
// scope is global.
func (h *hasher) hashValue(value []byte, object string, place []byte) []byte {
	if value[0] == '"' {
		value = rawjson.Unquote(value)
	}
	m := h.pool.Get().(*keyedMAC)
	defer h.pool.Put(m)
	m.Reset()
	if !h.global { // lengths, so that no two places are written alike
		m.text = append(strconv.AppendInt(m.text[:0], int64(len(object)), 10), ':')
		m.text = append(strconv.AppendInt(append(m.text, object...), int64(len(place)), 10), ':')
		m.Write(append(m.text, place...))
	}
	m.Write(value)
	m.text = m.Sum(m.text[:0])
	out := append(make([]byte, 0, len(h.prefix)+2*hashLength+1), h.prefix...)
	return append(hex.AppendEncode(out, m.text[:hashLength]), '"')
}

// keyedMAC is a keyed hash with room to work.
type keyedMAC struct {
	hash.Hash
	text []byte
}

// isOwnHash says that a stored value is a hash with this key and scope.
func (h *hasher) isOwnHash(quoted []byte) bool {
	return isHash(quoted) && bytes.HasPrefix(quoted, []byte(h.prefix))
}

// identityOf is what hashes of scope object are bound to: the object as long as it lives.
func identityOf(c *event.Change) string {
	if c.UID != "" {
		return c.UID
	}
	return c.Key()
}

// isHash says that a stored value was redacted before, with this key or another one: it must not be hashed twice. Hashes of
// earlier versions have no ID of a key.
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
