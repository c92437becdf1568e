package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// config makes the settings of crypto/tls; nil when TLS is off.
func (t TLS) config() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.caFile: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka.tls.caFile: %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("kafka.tls.certFile, kafka.tls.keyFile: %w", err)
			}
			return &pair, nil
		}
		if _, err := read(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return c, nil
}

// mechanism makes the SASL mechanism; nil when SASL is off.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Mechanism == "" {
		return nil, nil
	}
	password := s.Password
	if s.PasswordFile != "" {
		b, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.sasl.passwordFile: %w", err)
		}
		password = strings.TrimSpace(string(b))
	}
	var (
		m   sasl.Mechanism
		err error
	)
	switch s.Mechanism {
	case "plain":
		m = plain.Mechanism{Username: s.Username, Password: password}
	case "scram-sha-256":
		m, err = scram.Mechanism(scram.SHA256, s.Username, password)
	case "scram-sha-512":
		m, err = scram.Mechanism(scram.SHA512, s.Username, password)
	}
	if err != nil { // the library's error could quote what it could not prepare
		return nil, fmt.Errorf("kafka.sasl: the user name or password has characters that %s does not allow", s.Mechanism)
	}
	return m, nil
}
