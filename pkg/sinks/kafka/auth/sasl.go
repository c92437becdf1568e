package auth

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// NewMechanism returns the SASL mechanism; nil when SASL is off. It reads the files, so that a wrong path fails at start;
// they are read again for every connection.
func (s SASL) NewMechanism(timeout time.Duration) (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "":
		return nil, nil
	case "oauthbearer":
		return s.newBearer(newTokenClient(timeout))
	case "aws-msk-iam":
		identity, err := newAWSIdentity(s.Region, newTokenClient(timeout))
		if err != nil {
			return nil, err
		}
		return bearer{identity.connectionToken}, nil
	}
	m := passwordMechanism{s}
	if _, err := m.newMechanism(); err != nil {
		return nil, err
	}
	return m, nil
}

func (s SASL) newBearer(client *http.Client) (sasl.Mechanism, error) {
	if s.TokenFile == "" {
		return bearer{newTokenSource(s.OAuth, client).currentToken}, nil
	}
	read := func(context.Context) (string, error) { return readSecret("", s.TokenFile, "kafka.sasl.tokenFile") }
	if _, err := read(context.Background()); err != nil {
		return nil, err
	}
	return bearer{read}, nil
}

// readSecret returns a secret that is configured directly or in a file, without surrounding white space.
func readSecret(value, file, key string) (string, error) {
	if file == "" {
		return value, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// passwordMechanism is PLAIN or SCRAM with the password that is valid when a connection is made.
type passwordMechanism struct{ config SASL }

// Name implements [sasl.Mechanism].
func (m passwordMechanism) Name() string { return strings.ToUpper(m.config.Mechanism) }

// Start implements [sasl.Mechanism].
func (m passwordMechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	made, err := m.newMechanism()
	if err != nil {
		return nil, nil, &CredentialError{err}
	}
	return made.Start(ctx)
}

func (m passwordMechanism) newMechanism() (made sasl.Mechanism, err error) {
	password, err := readSecret(m.config.Password, m.config.PasswordFile, "kafka.sasl.passwordFile")
	if err != nil {
		return nil, err
	}
	switch m.config.Mechanism {
	case "plain":
		made = plain.Mechanism{Username: m.config.Username, Password: password}
	case "scram-sha-256":
		made, err = scram.Mechanism(scram.SHA256, m.config.Username, password)
	case "scram-sha-512":
		made, err = scram.Mechanism(scram.SHA512, m.config.Username, password)
	}
	if err != nil { // the error of the library may contain the password
		return nil, fmt.Errorf("kafka.sasl: the user name or password has characters that %s does not allow", m.config.Mechanism)
	}
	return made, nil
}
