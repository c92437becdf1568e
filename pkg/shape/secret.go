package shape

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// SecretMetadata lists additional metadata of Secrets to show.
type SecretMetadata struct {
	// Labels that are shown with their values; "*": all.
	Labels []string `mapstructure:"labels"`
	// Annotations that are shown with their values, beside those known to be harmless, see docs/shaping.md.
	Annotations []string `mapstructure:"annotations"`
}

func isSecret(r event.Resource) bool { return r.Group == "" && r.Resource == "secrets" }

// Members of a Secret that are shown, apart from labels and annotations. All other members, including those of later
// versions of Kubernetes, are redacted.
var (
	shownMembers  = []string{"apiVersion", "kind", "type", "immutable"}
	shownMetadata = []string{
		"name", "namespace", "uid", "resourceVersion", "generateName", "generation", "selfLink",
		"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	}
	shownOwnerMembers = []string{"apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"}
)

// harmlessAnnotations hold only names, references, times or switches, regardless of the Secret's contents. An annotation
// that may hold a value, a digest of a value or free text must not be added. docs/shaping.md lists them.
var harmlessAnnotations = []string{
	"kubernetes.io/service-account.name",
	"kubernetes.io/service-account.uid",

	"meta.helm.sh/release-name",
	"meta.helm.sh/release-namespace",
	"helm.sh/hook",
	"helm.sh/hook-delete-policy",
	"helm.sh/hook-weight",
	"helm.sh/resource-policy",

	"argocd.argoproj.io/compare-options",
	"argocd.argoproj.io/hook",
	"argocd.argoproj.io/sync-options",
	"argocd.argoproj.io/sync-wave",
	"argocd.argoproj.io/tracking-id",
	"kustomize.toolkit.fluxcd.io/prune",
	"kustomize.toolkit.fluxcd.io/reconcile",
	"kustomize.toolkit.fluxcd.io/ssa",

	"cert-manager.io/alt-names",
	"cert-manager.io/certificate-name",
	"cert-manager.io/common-name",
	"cert-manager.io/ip-sans",
	"cert-manager.io/issuer-group",
	"cert-manager.io/issuer-kind",
	"cert-manager.io/issuer-name",
	"cert-manager.io/uri-sans",

	"auth.openshift.io/certificate-hostnames",
	"auth.openshift.io/certificate-issuer",
	"auth.openshift.io/certificate-not-after",
	"auth.openshift.io/certificate-not-before",
	"openshift.io/owning-component",
	"openshift.io/token-secret.name",

	"reflector.v1.k8s.emberstack.com/reflection-allowed",
	"reflector.v1.k8s.emberstack.com/reflection-allowed-namespaces",
	"reflector.v1.k8s.emberstack.com/reflection-auto-enabled",
	"reflector.v1.k8s.emberstack.com/reflection-auto-namespaces",
	"reflector.v1.k8s.emberstack.com/reflects",
	"replicator.v1.mittwald.de/replicate-from",
	"sealedsecrets.bitnami.com/cluster-wide",
	"sealedsecrets.bitnami.com/managed",
	"sealedsecrets.bitnami.com/namespace-wide",
}

// everyLabel stands for all labels.
const everyLabel = "*"

// redactAll and showSingle are leaves of the trees below: a redacted value, and a scalar that is shown.
var (
	redactAll  = &path.Tree{Ends: true}
	showSingle = &path.Tree{Strict: true}
)

// showOnly returns the tree of an object in which members with these names are shown if they are scalars; all others are
// redacted.
func showOnly(names []string) *path.Tree {
	t := &path.Tree{Names: map[string]*path.Tree{}, Other: redactAll, Strict: true}
	for _, name := range names {
		t.Names[name] = showSingle
	}
	return t
}

// redactionTree returns the tree that is applied to every Secret.
func (m SecretMetadata) redactionTree() *path.Tree {
	root, metadata := showOnly(shownMembers), showOnly(shownMetadata)
	labels, annotations := showOnly(m.Labels), showOnly(slices.Concat(harmlessAnnotations, m.Annotations))
	annotations.Copies = true
	if slices.Contains(m.Labels, everyLabel) {
		labels.Other = showSingle
	}
	root.Names["metadata"] = metadata
	metadata.Names["labels"], metadata.Names["annotations"] = labels, annotations
	metadata.Names["ownerReferences"] = &path.Tree{Element: showOnly(shownOwnerMembers), Other: redactAll, Strict: true}
	metadata.Names["finalizers"] = &path.Tree{Element: showSingle, Other: redactAll, Strict: true}
	return root
}

// validateNames reports invalid names, and annotations that hold copies of Secrets.
func (m SecretMetadata) validateNames(problem problemFunc) {
	for i, name := range m.Labels {
		if name != everyLabel && !isQualifiedName(name) {
			problem("secretMetadata.labels["+strconv.Itoa(i)+"]",
				`%q is not a label name; write the complete name, or "*" for all`, name)
		}
	}
	for i, name := range m.Annotations {
		at := "secretMetadata.annotations[" + strconv.Itoa(i) + "]"
		switch {
		case !isQualifiedName(name):
			problem(at, "%q is not an annotation name; write the complete name, as in example.com/owner", name)
		case copyKindOf(name) != noCopy:
			problem(at, "%q holds a copy of the Secret's contents and is never shown", name)
		}
	}
}

// isQualifiedName reports whether a label or annotation may have this name: an optional prefix with a slash, and a name.
func isQualifiedName(name string) bool { return qualifiedName.MatchString(name) }

var qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// The summary of a known object holds digests of its parts (see deltas.AppendParts). Short values can be guessed from a
// digest, so the summary is encrypted before it is stored in event.Known.Summary:
//
//	method     1   see below; a bit is set if a filter has left the object out
//	redaction  4   ID of the redaction under which the object was last emitted
//	form       4   ID of the form in which it was read, see rule.formOf
//	shape      4   ID of what the rule leaves out of changes, see Policy.shapeID
//	summary        AES-256-GCM with a random nonce in front
//
// The key is derived from redaction.key, which is not stored. Without redaction.key, summaries of objects with redacted
// values are encrypted with a key that exists only in the process, so they are lost at a restart; all others with a key
// derived from a secret of the journal.
const (
	sealedNone       = 0x20 // there is no summary
	sealedStable     = 0x21
	sealedEphemeral  = 0x22
	sealedNotEmitted = 0x40 // a bit
	sealedHeader     = 13
)

// emission is how an object was last emitted, or would have been if a filter had not left it out.
type emission struct {
	redaction, form, shape uint32
	filtered               bool // no destination has it
}

// Special IDs of redactions.
const (
	redactionUnknown uint32 = iota // stored without a summary; so is the form, which no body has then
	redactionOlder                 // any redaction other than the current one
	firstRedaction
)

// summarySeal encrypts and decrypts summaries. Safe for concurrent use.
type summarySeal struct {
	keyed             bool // stable was derived from redaction.key
	stable, ephemeral cipher.AEAD
}

// newSeal returns a seal with the configured key, if any, and the secret of the journal.
func newSeal(key, secret []byte) (*summarySeal, error) {
	const purpose = "kubecdc summaries of known objects"
	s := &summarySeal{keyed: len(key) > 0}
	base := secret
	if s.keyed {
		base = key
	}
	var err error
	if s.stable, err = newAEAD(deriveKey(base, purpose)); err != nil {
		return nil, err
	}
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	s.ephemeral, err = newAEAD(random)
	return s, err
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// sealSummary returns the stored form of a summary. conceals is set if the rule redacts values of the object. scratch is
// memory that calls reuse.
func (s *summarySeal) sealSummary(scratch *[]byte, summary string, as emission, conceals bool) string {
	method, aead := byte(sealedStable), s.stable
	switch {
	case summary == "":
		method = sealedNone
	case conceals && !s.keyed:
		method, aead = sealedEphemeral, s.ephemeral
	}
	b := append(append((*scratch)[:0], summary...), method)
	for _, id := range [...]uint32{as.redaction, as.form, as.shape} {
		b = binary.BigEndian.AppendUint32(b, id)
	}
	if as.filtered {
		b[len(summary)] |= sealedNotEmitted
	}
	if method != sealedNone {
		b = aead.Seal(b, nil, b[:len(summary)], nil)
	}
	*scratch = b
	return string(b[len(summary):])
}

// openSummary is the inverse of sealSummary. It returns "" for a summary that was never sealed or has an unknown key.
func (s *summarySeal) openSummary(stored string) (summary string, as emission) {
	if len(stored) < sealedHeader || stored[0]&^sealedNotEmitted < sealedNone || stored[0]&^sealedNotEmitted > sealedEphemeral {
		return "", emission{}
	}
	header := []byte(stored[:sealedHeader])
	as.redaction, as.form = binary.BigEndian.Uint32(header[1:]), binary.BigEndian.Uint32(header[5:])
	as.shape = binary.BigEndian.Uint32(header[9:])
	as.filtered = header[0]&sealedNotEmitted != 0
	aead := s.stable
	switch header[0] &^ sealedNotEmitted {
	case sealedNone:
		return "", as
	case sealedEphemeral:
		aead = s.ephemeral
	}
	plain, err := aead.Open(nil, nil, []byte(stored[sealedHeader:]), nil)
	if err != nil { // another key
		return "", as
	}
	return string(plain), as
}

// IsEmitted reports whether a destination may have the known object with this stored summary: no filter has left it out.
func IsEmitted(stored string) bool {
	_, sealed := splitCopies(stored)
	return len(sealed) < sealedHeader || sealed[0]&sealedNotEmitted == 0 || sealed[0]&^sealedNotEmitted > sealedEphemeral
}

// Values of HashOptions.Scope.
const (
	scopeObject = "object"
	scopeGlobal = "global"
)

// HashOptions configures the hashes of redact: hmac.
type HashOptions struct {
	// Which equal values have equal hashes: object (those at one path of one object) or global (all; a writer who reads the
	// stream can test guesses).
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
	// It identifies the key, as any hash does, but reveals nothing else about it.
	keyID := hex.EncodeToString(deriveKey(derived, "kubecdc redaction, key ID")[:keyIDLength])
	h := &hasher{global: scope == scopeGlobal, prefix: `"` + hashPrefix + keyID + ":"}
	h.pool.New = func() any { return &keyedMAC{Hash: hmac.New(sha256.New, derived)} }
	return h
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
