package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecretBytes bounds a file with a secret: a larger one is not a secret, its path is wrong.
const maxSecretBytes = 1 << 20

// Secret is a password, a token or a key of the configuration: its text, or the file that has it. The zero value is none. It
// never shows its text to a formatter.
type Secret struct{ text, path string }

// Text returns the secret with a text.
func Text(text string) Secret { return Secret{text: text} }

// InFile returns the secret in a file.
func InFile(path string) Secret { return Secret{path: path} }

// Path returns the file of the secret; "" if it is in none.
func (s Secret) Path() string { return s.path }

// Read returns the text. That of a file is read each time, so that a rotated secret needs no restart, and lacks one newline
// at its end, which editors add. Errors name the file and never its content.
func (s Secret) Read() (string, error) {
	if s.path == "" {
		return s.text, nil
	}
	f, err := os.Open(s.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	content, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	text := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	switch {
	case err != nil:
		return "", err
	case strings.TrimSpace(text) == "":
		return "", fmt.Errorf("file %s is empty", s.path)
	case len(content) > maxSecretBytes:
		return "", fmt.Errorf("file %s is larger than %d KiB", s.path, maxSecretBytes>>10)
	}
	return text, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Text(string(text))
	return nil
}

// String hides the text.
func (s Secret) String() string {
	switch {
	case s.path != "":
		return "file " + s.path
	case s.text != "":
		return "***"
	}
	return ""
}

// Describe returns what text calls the secret, with the file that it is in: "the token in file /run/token".
func (s Secret) Describe(what string) string {
	if s.path == "" {
		return "the " + what
	}
	return "the " + what + " in file " + s.path
}

// GoString hides the text from %#v.
func (s Secret) GoString() string { return s.String() }

// TLS names the files of a TLS connection, which are read for every connection.
type TLS struct {
	// PEM certificates to trust instead of the system's.
	CA string `mapstructure:"ca"`
	// PEM file of a client certificate.
	Cert string `mapstructure:"cert"`
	// PEM file of its key.
	Key string `mapstructure:"key"`
}

// Validate returns an error unless a certificate has a key. It opens no file.
func (t TLS) Validate() error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("cert and key belong together; set both or none")
	}
	return nil
}

// Files returns the files that are configured, under the key of the settings: "kafka.tls".
func (t TLS) Files(key string) (named []File) {
	for _, f := range []File{{key + ".ca", t.CA}, {key + ".cert", t.Cert}, {key + ".key", t.Key}} {
		if f.Path != "" {
			named = append(named, f)
		}
	}
	return named
}

// ClientConfig reads the files and returns the configuration of a client that connects to a host. Errors begin with the key
// of the file; key is that of the settings.
func (t TLS) ClientConfig(key, host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("%s.ca: %w", key, err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s.ca: %s holds no PEM certificate", key, t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("%s.cert, %s.key: %w", key, key, err)
		}
		// Not c.Certificates: one of those is sent only if the server lists its direct issuer.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c, nil
}

// File is a file in PEM that the configuration names: certificates or a key. The exporter checks at start that it exists.
type File struct {
	Key  string // the configuration key, relative to the sink: "kafka.tls.ca"
	Path string // as configured
}
