package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

// signatureSuffix follows the name of a signed file.
const signatureSuffix = ".sig"

// sign signs the checksums in a directory, and so all files of the release, with a private key in PEM (PKCS #8). The
// signature, in base64, is the one that "cosign verify-blob --key" and "openssl dgst -verify" verify: of the SHA-256 for
// ECDSA, of the text itself for Ed25519.
func sign(out, keyFile string) error {
	if keyFile == "" {
		return fmt.Errorf("the flag -key is missing: the file of the private key that signs %s", checksumList)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return err
	}
	path := filepath.Join(out, checksumList)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("there are no checksums to sign, make the archives first: %w", err)
	}
	var signature []byte
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		sum := sha256.Sum256(text)
		signature, err = key.Sign(rand.Reader, sum[:], crypto.SHA256)
	case ed25519.PrivateKey:
		signature, err = key.Sign(rand.Reader, text, crypto.Hash(0))
	default:
		err = fmt.Errorf("the key in %s is a %T, want ECDSA or Ed25519", keyFile, key)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path+signatureSuffix, []byte(base64.StdEncoding.EncodeToString(signature)+"\n"), 0o644)
}

// readKey reads a private key. Its errors do not quote the file.
func readKey(path string) (any, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s has no block PRIVATE KEY in PEM: make one with openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is no private key in PKCS #8", path)
	}
	return key, nil
}
