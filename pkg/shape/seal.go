package shape

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
)

// What is remembered of an object holds digests of its parts (see deltas.AppendParts). Short values can be guessed from a
// digest, so a summary is encrypted before it is stored, in event.Known.Summary:
//
//	form       1   see below
//	redaction  4   ID of the redaction under which the object was last emitted
//	summary        AES-256-GCM with a random nonce in front
//
// The key is derived from redaction.key, which is not stored. Without one it is that of the process for whatever the rule
// redacts, so that no file has it: then a restart forgets these summaries. For everything else it is derived from a secret
// of the journal.
const (
	sealedNone      = 0x10 // there is no summary
	sealedStable    = 0x11
	sealedEphemeral = 0x12
	sealedHeader    = 5
)

// IDs of redactions that are none.
const (
	redactionUnknown uint32 = iota // the object was stored without a summary
	redactionOlder                 // some other one
	firstRedaction
)

// summarySeal encrypts and decrypts summaries. Safe for concurrent use.
type summarySeal struct {
	keyed             bool // stable is derived from redaction.key
	stable, ephemeral cipher.AEAD
}

// newSeal makes a seal of the configured key, if there is one, and of the journal's secret.
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

// sealSummary returns the stored form of a summary. conceals says that the rule redacts values of its object.
func (s *summarySeal) sealSummary(summary string, redaction uint32, conceals bool) string {
	form, aead := byte(sealedStable), s.stable
	switch {
	case summary == "":
		form = sealedNone
	case conceals && !s.keyed:
		form, aead = sealedEphemeral, s.ephemeral
	}
	b := make([]byte, sealedHeader, sealedHeader+aead.Overhead()+len(summary))
	b[0] = form
	binary.BigEndian.PutUint32(b[1:], redaction)
	if form != sealedNone {
		b = aead.Seal(b, nil, []byte(summary), nil)
	}
	return string(b)
}

// openSummary is the inverse of sealSummary. A summary that was never sealed, or whose key is not known any more, is "".
func (s *summarySeal) openSummary(stored string) (summary string, redaction uint32) {
	if len(stored) < sealedHeader || stored[0] < sealedNone || stored[0] > sealedEphemeral {
		return "", redactionUnknown
	}
	redaction = binary.BigEndian.Uint32([]byte(stored[1:sealedHeader]))
	aead := s.stable
	switch stored[0] {
	case sealedNone:
		return "", redaction
	case sealedEphemeral:
		aead = s.ephemeral
	}
	plain, err := aead.Open(nil, nil, []byte(stored[sealedHeader:]), nil)
	if err != nil { // another key
		return "", redaction
	}
	return string(plain), redaction
}
