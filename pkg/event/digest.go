package event

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Digest is an order-independent checksum over a set of objects: the sum, word by word and modulo 2⁶⁴, of the SHA-256 of
// "namespace/name/uid/resourceVersion" of each. The zero value is the digest of the empty set. A consumer uses it to verify
// that it holds the same objects in the same versions. It does not protect against forgery.
type Digest [4]uint64

// DigestAlgorithm names the algorithm of [Digest] and its version. It changes when equal sets get another digest.
const DigestAlgorithm = "sha256-sum64/1"

// Add adds an object that is not yet in the set.
func (d *Digest) Add(namespace, name, uid, resourceVersion string) {
	for i, word := range digestWords(namespace, name, uid, resourceVersion) {
		d[i] += word
	}
}

// Remove removes an object that is in the set.
func (d *Digest) Remove(namespace, name, uid, resourceVersion string) {
	for i, word := range digestWords(namespace, name, uid, resourceVersion) {
		d[i] -= word
	}
}

func digestWords(namespace, name, uid, resourceVersion string) (words [4]uint64) {
	var scratch [320]byte
	text := append(append(append(append(scratch[:0], namespace...), '/'), name...), '/')
	text = append(append(append(text, uid...), '/'), resourceVersion...)
	sum := sha256.Sum256(text)
	for i := range words {
		words[i] = binary.BigEndian.Uint64(sum[8*i:])
	}
	return words
}

// String returns the digest as 64 hexadecimal digits.
func (d *Digest) String() string {
	var b [32]byte
	for i, word := range d {
		binary.BigEndian.PutUint64(b[8*i:], word)
	}
	return hex.EncodeToString(b[:])
}
