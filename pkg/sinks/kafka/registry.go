package kafka

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// Registry is a schema registry with the API of Confluent's.
type Registry struct {
	// URL of the API: https://host/path.
	URL string `mapstructure:"url"`
	// Encoding: avro (default), or json with JSON Schema.
	Encoding string `mapstructure:"encoding"`
	// Username of basic authentication.
	Username string `mapstructure:"username"`
	// Password of basic authentication.
	Password credentials.Secret `mapstructure:"password"`
	// AllowCleartextCredentials permits them without https.
	AllowCleartextCredentials bool `mapstructure:"allowCleartextCredentials"`
	// TLS for https.
	TLS credentials.TLS `mapstructure:"tls"`
}

// The values of Registry.Encoding.
const (
	EncodingAvro = "avro"
	EncodingJSON = "json"
)

// isGiven reports whether something is configured that is no default.
func (r Registry) isGiven() bool { return r != Registry{Encoding: EncodingAvro} && r != Registry{} }

// validate returns what is wrong with r, if it is given.
func (r Registry) validate() error {
	if !r.isGiven() {
		return nil
	}
	u, err := url.Parse(r.URL)
	hasPassword := r.Password != credentials.Secret{}
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.Port() != "" && !sinks.IsPort(u.Port()):
		return errors.New("kafka.registry.url: expected the address of a schema registry, https://…") // it may hold a password
	case u.User != nil:
		return errors.New("kafka.registry.url: holds a user; set kafka.registry.username and password")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("kafka.registry.url: holds a query or a fragment; expected the address alone")
	case sinks.CheckHost(u.Hostname()) != nil:
		return fmt.Errorf("kafka.registry.url: %w", sinks.CheckHost(u.Hostname()))
	case !slices.Contains([]string{"", EncodingAvro, EncodingJSON}, r.Encoding):
		return fmt.Errorf("kafka.registry.encoding: %q; expected avro or json", r.Encoding)
	case (r.Username == "") == hasPassword:
		return errors.New("kafka.registry.username: username and password belong together; set both or none")
	case strings.Contains(r.Username, ":"):
		return fmt.Errorf("kafka.registry.username: %q; expected a name without a colon", r.Username)
	case u.Scheme == "http" && r.TLS != credentials.TLS{}:
		return errors.New("kafka.registry.tls: given, and kafka.registry.url is http://; write https://")
	case u.Scheme == "http" && hasPassword && !r.AllowCleartextCredentials && !isLoopback(u.Hostname()):
		return errors.New("kafka.registry.url: http:// sends the password in cleartext; use https://, " +
			"or set kafka.registry.allowCleartextCredentials: true if the network is trusted")
	}
	if err := r.TLS.Validate(); err != nil {
		return fmt.Errorf("kafka.registry.tls.cert: %w", err)
	}
	return nil
}

// ValidateRegistry returns an error unless a registry is given for the formats that need one, and for no other.
func (c Config) ValidateRegistry(f format.Format) error {
	switch given := c.Registry.isGiven(); {
	case given && !f.IsRegistered():
		return fmt.Errorf("kafka.registry: given, with the format %v; only debezium with schema: registry has schemas there", f)
	case !given && f.IsRegistered():
		return errors.New("kafka.registry: missing; schema: registry needs the url of one")
	}
	return nil
}

// noIdle keeps no connection open: a registry is asked a few times.
const noIdle = -1

// maxRegistryAnswer bounds an answer of a registry, in bytes.
const maxRegistryAnswer = 1 << 20

// schemaRegistry registers the schemas of keys and values of each topic, and knows their IDs: those that it was given
// before, where the registry does not answer. A nil one is of a format without schemas. It is safe for concurrent use.
type schemaRegistry struct {
	config     Registry
	client     *sr.Client
	timeout    time.Duration
	patience   time.Duration // how long it is asked for an ID that is known from an earlier process
	log        *slog.Logger
	key, value sr.Schema
	source     string // of the IDs: registry and schemas

	mu   sync.Mutex
	ids  map[string]record.SchemaIDs // by topic
	sure map[string]bool             // topics of which the registry has given the IDs to this process
}

func newSchemaRegistry(cfg Config, f format.Format, log *slog.Logger) (*schemaRegistry, error) {
	if !f.IsRegistered() {
		return nil, nil
	}
	kind := sr.TypeAvro
	if f == format.DebeziumJSONSchema {
		kind = sr.TypeJSON
	}
	key, value := f.RegisteredSchemas()
	r := &schemaRegistry{config: cfg.Registry, timeout: cfg.RequestTimeout, patience: 2 * time.Second, log: log,
		ids: map[string]record.SchemaIDs{}, sure: map[string]bool{}}
	r.key, r.value = sr.Schema{Schema: key, Type: kind}, sr.Schema{Schema: value, Type: kind}
	sum := sha256.Sum256([]byte(strings.Join([]string{r.config.URL, key, value}, "\x00")))
	r.source = hex.EncodeToString(sum[:8])
	client := sinks.NewHTTPClient(r.config.TLS, "kafka.registry.tls", noIdle)
	client.Transport = boundedTransport{client.Transport}
	var err error
	r.client, err = sr.NewClient(sr.URLs(r.config.URL), sr.HTTPClient(client), sr.UserAgent("kubecdc"), sr.PreReq(r.authenticate))
	return r, err
}

// boundedTransport bounds the bodies of answers.
type boundedTransport struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t boundedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, maxRegistryAnswer)
	}
	return response, err
}

// authenticate adds the credentials that are valid now to a request.
func (r *schemaRegistry) authenticate(request *http.Request) error {
	if r.config.Username == "" {
		return nil
	}
	password, err := r.config.Password.Read()
	if err != nil {
		return &auth.CredentialError{Err: fmt.Errorf("kafka.registry.password: %w", err)}
	}
	request.SetBasicAuth(r.config.Username, password)
	return nil
}

// idsOf returns the IDs of the schemas of a topic. It registers them once in a process.
func (r *schemaRegistry) idsOf(ctx context.Context, topic string) (record.SchemaIDs, error) {
	r.mu.Lock()
	ids, known := r.ids[topic]
	sure, timeout := r.sure[topic], r.timeout
	r.mu.Unlock()
	if sure {
		return ids, nil
	}
	if known {
		timeout = min(timeout, r.patience)
	}
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var given record.SchemaIDs
	var err error
	if given.Key, err = r.registerSubject(asking, topic+"-key", r.key); err == nil {
		given.Value, err = r.registerSubject(asking, topic+"-value", r.value)
	}
	switch {
	case err == nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ids[topic], r.sure[topic] = given, true
		return given, nil
	case ctx.Err() != nil:
		return ids, ctx.Err()
	case known:
		r.log.Warn("the schema registry does not register schemas; rows are written by those that it had registered before",
			"topic", topic, "error", err)
		return ids, nil
	}
	return ids, err
}

func (r *schemaRegistry) registerSubject(ctx context.Context, subject string, schema sr.Schema) (int32, error) {
	id, err := r.client.RegisterSchema(ctx, subject, schema, -1, -1)
	if err == nil && (id < 1 || id > math.MaxInt32) {
		err = fmt.Errorf("it answers with the ID %d", id)
	}
	if err != nil {
		return 0, r.problem(subject, err)
	}
	return int32(id), nil
}

// checkServer asks the registry whether it takes schemas of the kind.
func (r *schemaRegistry) checkServer(ctx context.Context) error {
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	kinds, err := r.client.SupportedTypes(ctx)
	switch {
	case err != nil:
		return r.problem("", err)
	case !slices.Contains(kinds, r.key.Type):
		return condition.Problem{Code: condition.SinkMisconfigured, Cause: fmt.Sprintf("the schema registry takes no %v", r.key.Type),
			Remedy: "set another kafka.registry.encoding"}.Wrap(nil)
	}
	return nil
}

// problem returns why a registry registers nothing under a subject. Of its answers there are only codes in the text: the
// rest may repeat what was sent.
func (r *schemaRegistry) problem(subject string, err error) error {
	var answer *sr.ResponseError
	var credential *auth.CredentialError
	p := condition.Problem{Code: condition.SinkMisconfigured, Remedy: "check kafka.registry.url"}
	switch {
	case errors.As(err, &credential):
		p = condition.Problem{Code: condition.SinkUnauthorized, Cause: credential.Error(), Remedy: "correct the file; it is read for each request"}
	case errors.As(err, &answer):
		p = refusalOf(answer, subject)
	case !isOfConnection(err):
		p.Cause = "it does not answer as a registry does"
	default:
		peer := condition.Peer{Address: "kafka.registry.url", Settings: "kafka.registry.tls", Other: "write https:// in kafka.registry.url"}
		if peer.Secure = strings.HasPrefix(r.config.URL, "https:"); peer.Secure {
			peer.Other = "write http:// in kafka.registry.url"
		}
		p = peer.Problem(err)
	}
	p.Cause = "the schema registry: " + p.Cause
	return p.Wrap(nil)
}

func isOfConnection(err error) bool {
	return errors.As(err, new(*condition.OpeningError)) || errors.As(err, new(*net.OpError)) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// refusalOf returns the problem of an answer with the status of a failure.
func refusalOf(answer *sr.ResponseError, subject string) condition.Problem {
	p := condition.Problem{Code: condition.SinkMisconfigured, Remedy: "check kafka.registry.url",
		Cause: strings.TrimSpace(fmt.Sprintf("it answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode)))}
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		p.Code = condition.SinkUnauthorized
		p.Remedy = "check kafka.registry.username and password, and the right to register " + cmp.Or(subject, "schemas")
	case code == http.StatusConflict:
		p.Cause += fmt.Sprintf(": %q has another schema already", subject)
		p.Remedy = "delete that subject, or name topics of their own in kafka.topic"
	case code == http.StatusUnprocessableEntity:
		p.Cause += fmt.Sprintf(" for %q, with code %d", subject, answer.ErrorCode)
		p.Remedy = "see that the registry is not read-only, and takes schemas of kafka.registry.encoding"
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		p.Code, p.Remedy = condition.SinkBusy, ""
	case code >= 500:
		p.Code, p.Remedy = condition.SinkFailing, "see the log of the registry"
	}
	return p
}

// stored returns the IDs that are known, by topic.
func (r *schemaRegistry) stored() *storedSchemas {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &storedSchemas{source: r.source}
	for topic, ids := range r.ids {
		s.topics = append(s.topics, topicSchemas{topic, ids})
	}
	return s
}

// restore takes the IDs that an earlier process has stored, if they are of this registry and of the same schemas.
func (r *schemaRegistry) restore(s *storedSchemas) {
	if r == nil || s.source != r.source {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range s.topics {
		if !r.sure[t.topic] {
			r.ids[t.topic] = t.ids
		}
	}
}
