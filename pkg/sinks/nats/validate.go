package nats

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Validate checks everything that does not need files or the network, with defaults in place of zero values. Each of the
// joined errors names the path of its field. None contains a secret.
func (c Config) Validate() error {
	c.SetDefaults()
	return errors.Join(
		atPath("url", c.validateURL()),
		atPath("url", c.validateCleartext()),
		c.validateMode(),
		atPath("subject", c.validateSubject()),
		atPath("lanes", checkRange(c.Lanes, 1, maxLanes)),
		atPath("ackTimeout", c.validateAckTimeout()),
		atPath("maxInFlightBytes", checkPositive(c.MaxInFlightBytes)),
		atPath("inboxPrefix", validateLiteral(c.InboxPrefix)),
		c.validateAuthentication(),
		atPath("create.storage", checkOneOf(c.Create.Storage, storageFile, storageMemory)),
		atPath("create.replicas", checkRange(c.Create.Replicas, 1, 5)),
		atPath("create.maxAge", checkLimit(c.Create.MaxAge, time.Second)),
		atPath("create.maxBytes", checkLimit(c.Create.MaxBytes, minStreamBytes)),
		atPath("create.duplicates", c.validateDuplicates()),
	)
}

// atPath prefixes an error with the path of its field.
func atPath(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nats.%s: %w", path, err)
}

func (c Config) validateURL() error {
	if c.URL == "" {
		return errors.New("required; for example nats://127.0.0.1:4222")
	}
	for i, address := range strings.Split(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Host == "" { // the address itself is not shown: it may hold a password
			return fmt.Errorf("address %d is not of the form nats://host:port", i+1)
		}
		if err := checkOneOf(u.Scheme, "nats", "tls", "ws", "wss"); err != nil {
			return fmt.Errorf("address %d: scheme: %w", i+1, err)
		}
		if n, err := strconv.ParseUint(cmp.Or(u.Port(), "4222"), 10, 16); err != nil || n == 0 || u.Hostname() == "" {
			return fmt.Errorf("address %d is not of the form nats://host:port, with a port from 1 to 65535", i+1)
		}
		if err := sinks.CheckHost(u.Hostname()); err != nil {
			return fmt.Errorf("address %d: %w", i+1, err)
		}
	}
	return nil
}

// validateCleartext refuses to send a password or token in cleartext without allowCleartextCredentials. A loopback address
// is no exception, because a server may announce others to connect to. Seeds and .creds files only sign a challenge.
func (c Config) validateCleartext() error {
	isValid := c.validateURL() == nil // else that is the error
	if c.AllowCleartextCredentials || c.TLS != (TLS{}) || !isValid {
		return nil
	}
	for i, address := range strings.Split(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Scheme == "tls" || u.Scheme == "wss" || u.User == nil && c.Password == (credentials.Secret{}) && c.Token == (credentials.Secret{}) {
			continue
		}
		return fmt.Errorf("address %d sends the password or token in cleartext; write tls://, use credentials or nkeySeed, or "+
			"set nats.allowCleartextCredentials: true if the network is trusted", i+1)
	}
	return nil
}

func validateStream(name string) error {
	if name == "" {
		return errors.New("required; the name of a JetStream stream")
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`.*>/\`, r) }); i >= 0 {
		return fmt.Errorf(`%q has %q at position %d; a stream name has no blanks and none of . * > / \`, name, name[i], i+1)
	}
	return nil
}

func (c Config) validateSubject() error {
	if c.Subject == "" {
		return errors.New("required; for example k8s.{cluster}.{group}.{resource}.{namespace}.{name}")
	}
	template, err := sinks.ParseTemplate(c.Subject)
	if err != nil {
		return err
	}
	filled := string(template.AppendName(nil, &sampleChange, func(dst []byte, _ string) []byte { return append(dst, 'x') }))
	if err := validateLiteral(filled); err != nil {
		return err
	}
	if i := strings.IndexFunc(filled, func(r rune) bool { return !strings.ContainsRune("/=.", r) && !isPlainByte(byte(r)) }); c.Mode == modeKV && i >= 0 {
		return fmt.Errorf("%q has %q, which a key cannot have; legal are letters, digits and the signs -/_=. only", c.Subject, filled[i])
	}
	if c.Mode == modeKV {
		return checkDistinctSubjects(c.Subject, "mode kv")
	}
	return nil
}

// checkDistinctSubjects checks that no two objects, of any clusters, can share a subject. user names the setting that
// requires it.
func checkDistinctSubjects(template, user string) error {
	tokens := strings.Split(template, ".")
	for _, need := range [][]string{{"{cluster}"}, {"{group}"}, {"{resource}", "{kind}"}, {"{namespace}"}, {"{name}"}} {
		if !slices.ContainsFunc(need, func(placeholder string) bool { return slices.Contains(tokens, placeholder) }) {
			return fmt.Errorf("%q does not give each object a subject of its own, which %s needs; write %s between dots",
				template, user, strings.Join(need, " or "))
		}
	}
	return nil
}

// validateLiteral checks that s is a subject without wildcards. The client and the server accept more: "a.*" is stored under
// exactly that name, and "a..b" gets no answer.
func validateLiteral(s string) error {
	if strings.HasPrefix(s, "$") {
		return fmt.Errorf("%q begins with $, which is the server's own", s)
	}
	for token := range strings.SplitSeq(s, ".") {
		if token == "" {
			return fmt.Errorf("%q has an empty token; write no dot at the ends and no two in a row", s)
		}
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '*' || r == '>' }); i >= 0 {
		return fmt.Errorf("%q has a blank, a wildcard or a character that is not ASCII: %q", s, s[i:i+1])
	}
	return nil
}

func (c Config) validateAuthentication() error {
	var ways []string
	none := credentials.Secret{}
	for _, way := range []struct {
		name string
		set  bool
	}{
		{"credentials", c.Credentials != none}, {"nkeySeed", c.NkeySeed != none},
		{"user", c.User != "" || c.Password != none}, {"token", c.Token != none},
	} {
		if way.set {
			ways = append(ways, way.name)
		}
	}
	var errs []error
	if len(ways) > 1 {
		errs = append(errs, atPath(ways[1], fmt.Errorf("%s is set too; use one way to authenticate", ways[0])))
	}
	if (c.User == "") != (c.Password == none) {
		errs = append(errs, atPath("user", errors.New("user and password belong together; set both or none")))
	}
	errs = append(errs, atPath("tls.cert", c.TLS.Validate()))
	if text, _ := c.Credentials.Read(); c.Credentials.Path() == "" && text != "" && !strings.Contains(text, "-----BEGIN NATS USER JWT-----") {
		errs = append(errs, atPath("credentials", errors.New("no user JWT with its seed; expected {file: PATH} of a .creds file")))
	}
	if _, err := c.readNkey(); c.NkeySeed.Path() == "" && c.NkeySeed != none && err != nil {
		errs = append(errs, atPath("nkeySeed", errors.New("no seed of a user nkey; expected {file: PATH}, or a text that begins with SU")))
	}
	return errors.Join(errs...)
}

const (
	minAckTimeout = 100 * time.Millisecond // below it no server over a network can acknowledge
	maxAckTimeout = time.Hour              // a server that hangs is noticed only then
)

func (c Config) validateAckTimeout() error {
	if c.AckTimeout < minAckTimeout {
		return fmt.Errorf("too short: found %v, expected at least %v", c.AckTimeout, minAckTimeout)
	}
	if c.AckTimeout > maxAckTimeout {
		return fmt.Errorf("too long: found %v, expected at most %v", c.AckTimeout, maxAckTimeout)
	}
	return nil
}

func (c Config) validateDuplicates() error {
	if err := checkPositive(c.Create.Duplicates); err != nil {
		return err
	}
	if c.Create.MaxAge > 0 && c.Create.Duplicates > c.Create.MaxAge {
		return fmt.Errorf("%v is longer than maxAge, %v; the server refuses that", c.Create.Duplicates, c.Create.MaxAge)
	}
	return nil
}

func checkRange(n, low, high int) error {
	if n < low || n > high {
		return fmt.Errorf("%d is not between %d and %d", n, low, high)
	}
	return nil
}

func checkPositive[T int64 | time.Duration](v T) error {
	if v <= 0 {
		return fmt.Errorf("%v is not positive", v)
	}
	return nil
}

// minStreamBytes is the least limit of a stream that holds a large object.
const minStreamBytes int64 = 1 << 20

// checkLimit checks a limit of which 0 is none.
func checkLimit[T int64 | time.Duration](v, least T) error {
	if v != 0 && v < least {
		return fmt.Errorf("%v keeps nothing; expected at least %v, or 0 for no limit", v, least)
	}
	return nil
}

func checkOneOf(v string, allowed ...string) error {
	if !slices.Contains(allowed, v) {
		return fmt.Errorf("%q is not one of %s", v, strings.Join(allowed, ", "))
	}
	return nil
}

// validateMode checks the settings that the mode requires and those that have no effect in it.
func (c Config) validateMode() error {
	unused := func(path string, set bool, why string) error {
		if !set {
			return nil
		}
		return atPath(path, fmt.Errorf("has no effect in mode %s: %s", c.Mode, why))
	}
	switch c.Mode {
	case modeJetStream:
		return errors.Join(unused("repair", c.Repair, "it is for mode kv"), atPath("stream", validateStream(c.Stream)),
			unused("bucket", c.Bucket != "", "it is for mode kv"))
	case modeKV:
		err := errors.Join(atPath("bucket", validateBucket(c.Bucket)), unused("stream", c.Stream != "", "the bucket has its own"))
		if c.Create.MaxAge != 0 {
			err = errors.Join(err, atPath("create.maxAge", errors.New("objects that do not change would disappear from the bucket; "+
				"leave it out in mode kv")))
		}
		return err
	case "core":
		return atPath("mode", errors.New(`"core" is no mode any more, since it kept nothing; name a stream, or a bucket with mode kv`))
	}
	return atPath("mode", checkOneOf(c.Mode, modeJetStream, modeKV))
}

func validateBucket(name string) error {
	if name == "" {
		return errors.New("required in mode kv; the name of a key-value bucket")
	}
	if i := slices.IndexFunc([]byte(name), func(b byte) bool { return !isPlainByte(b) }); i >= 0 {
		return fmt.Errorf("%q has %q at position %d; a bucket's name has letters, digits, _ and - only", name, name[i], i+1)
	}
	return nil
}
