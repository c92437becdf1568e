package shape

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
)

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
