package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxBatchBytes bounds the events of one request in batched mode. A larger single event is a request of its own.
const maxBatchBytes = 1 << 20

// Sink posts to one URL. It is safe for concurrent use as defined by [sinks.Sink].
type Sink struct {
	cfg       Config
	format    format.Format
	client    *http.Client
	laneNames []sinks.Lane                 // by lane number
	slots     map[sinks.Lane]chan struct{} // of capacity 1; full while a request of the lane is in flight

	bodyTimeout     time.Duration
	returnAfter     time.Duration
	connectionsLost atomic.Bool // the last response did not end, so that its connection was closed

	lifetime       context.Context // ends with Close
	cancelRequests context.CancelFunc
	requests       sync.WaitGroup
}

var (
	_ sinks.ConditionReporter = (*Sink)(nil)
	_ sinks.Concurrent        = (*Sink)(nil)
)

// New returns a sink that posts changes in the format f. It reads no file, opens no connection and starts no goroutine. Its
// errors are those of [Config.Validate] and [Config.ValidateFormat].
func New(cfg Config, f format.Format) (*Sink, error) {
	if err := errors.Join(cfg.Validate(), cfg.ValidateFormat(f)); err != nil {
		return nil, err
	}
	cfg.SetDefaults()
	s := &Sink{cfg: cfg, format: f, client: sinks.NewHTTPClient(cfg.TLS, "webhook.tls", cfg.Lanes), bodyTimeout: bodyTimeout,
		returnAfter: returnAfter, slots: make(map[sinks.Lane]chan struct{}, cfg.Lanes)}
	s.lifetime, s.cancelRequests = context.WithCancel(context.Background())
	for i := range cfg.Lanes {
		name := sinks.Lane(fmt.Sprintf("%d/%d", i, cfg.Lanes))
		s.laneNames, s.slots[name] = append(s.laneNames, name), make(chan struct{}, 1)
	}
	return s, nil
}

// Concurrency implements [sinks.Concurrent]: one Publish per lane.
func (s *Sink) Concurrency() int { return s.cfg.Lanes }

// Lane implements [sinks.Sink]. It hashes the key of the object and never fails.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) {
	return s.laneNames[sinks.KeyHash(c)%uint64(len(s.laneNames))], nil
}

// AllLanes implements [sinks.LaneLister].
func (s *Sink) AllLanes(*event.Change, *sinks.Template) ([]sinks.Lane, error) {
	return s.laneNames, nil
}

// StandsForSeveral implements [sinks.LaneLister].
func (*Sink) StandsForSeveral(sinks.Lane) bool { return false }

// returnAfter is how long Publish posts before it returns with what was accepted: a receiver that needs seconds for each of
// many requests is slow, and not silent.
const returnAfter = time.Second

// Publish implements [sinks.Sink]. It posts one request after the other. A batch that is rejected is posted in halves, until
// the event that is the cause stands alone. // I3
func (s *Sink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	slot, known := s.slots[lane]
	if !known {
		return 0, fmt.Errorf("lane %q is not one of this sink, which has %d lanes", lane, len(s.laneNames))
	}
	done, limit, start := 0, s.cfg.Batch, time.Now()
	for done < len(batch) && (done == 0 || time.Since(start) < s.returnAfter) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n := requestSize(batch[done:], limit)
		err := s.postBatch(ctx, slot, batch[done:done+n])
		switch {
		case err == nil:
			done += n
		case n > 1 && errors.As(err, new(*sinks.RejectedError)):
			limit = n / 2
		default:
			return done, err
		}
	}
	return done, nil
}

// requestSize returns how many messages go into one request.
func requestSize(batch []sinks.Message, limit int) int {
	n, size := 0, 0
	for n < min(limit, len(batch)) {
		if size += batch[n].Change.Size(); n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	return n
}

// encodeRequest returns the body of a request and sets the headers that depend on the events.
func (s *Sink) encodeRequest(header http.Header, batch []sinks.Message) []byte {
	header.Set("Content-Type", s.format.ContentType())
	if s.cfg.Batch == 1 {
		if s.format == format.CloudEvents {
			setAttributes(header, batch[0].Change)
		}
		return s.format.AppendValue(nil, batch[0].Change)
	}
	header.Set("Content-Type", "application/cloudevents-batch+json")
	body := []byte{'['}
	for i, m := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = s.format.AppendValue(body, m.Change)
	}
	return append(body, ']')
}

// setAttributes sets the headers of binary mode (http-protocol-binding.md, section 3.1.3).
func setAttributes(header http.Header, c *event.Change) {
	var value []byte
	for _, a := range format.Attributes() {
		if value = a.Append(value[:0], c); len(value) > 0 {
			header.Set("ce-"+a.Name, string(sinks.AppendAttribute(nil, value)))
		}
	}
}

// Close waits for abandoned requests until ctx ends and cancels the rest: a receiver that still processes a request could
// finish it after its repetition. Then it closes the connections. // I3
func (s *Sink) Close(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.cancelRequests)
	s.requests.Wait()
	stop()
	s.cancelRequests()
	s.client.CloseIdleConnections()
	return nil
}

// Config is the configuration of a webhook. Zero values mean the default documented at each field; [Config.SetDefaults] sets
// them.
type Config struct {
	// URL receives the requests: https://host/path, or http:// on a trusted network. Required. Only scheme and host are
	// ever shown.
	URL string `mapstructure:"url"`
	// Batch is how many events one request may hold, as a JSON array, in the format cloudevents-structured. Default 1.
	Batch int `mapstructure:"batch"`
	// Lanes that objects hash to, each with one request at a time: at most 1024. Another number begins them again. Default
	// 16.
	Lanes int `mapstructure:"lanes"`
	// Timeout bounds one request with its response. Default 15s; at least 100ms.
	Timeout time.Duration `mapstructure:"timeout"`
	// BearerToken is a token for the Authorization header.
	BearerToken credentials.Secret `mapstructure:"bearerToken"`
	// Headers are sent with each request.
	Headers []Header `mapstructure:"headers"`
	// AllowCleartextCredentials permits a token, or a header with a secret, without https, over a trusted network.
	AllowCleartextCredentials bool `mapstructure:"allowCleartextCredentials"`
	// TLS names files for https.
	TLS credentials.TLS `mapstructure:"tls"`
}

// Header is one header of every request.
type Header struct {
	// Name of the header.
	Name string `mapstructure:"name"`
	// Value of the header; {file: PATH} is read for each request.
	Value credentials.Secret `mapstructure:"value"`
}

const (
	defaultLanes   = 16
	maxLanes       = 1024
	maxBatch       = 1000
	defaultTimeout = 15 * time.Second
	maxTimeout     = time.Hour              // a receiver that hangs is noticed only then
	minTimeout     = 100 * time.Millisecond // below it no request over a network succeeds
)

// SetDefaults sets the default of every zero field that has one.
func (c *Config) SetDefaults() {
	c.Batch, c.Lanes, c.Timeout = cmp.Or(c.Batch, 1), cmp.Or(c.Lanes, defaultLanes), cmp.Or(c.Timeout, defaultTimeout)
}

// Validate checks everything that needs neither files nor network, with defaults for zero values. Each of the joined errors
// names the path of its field. None contains a secret.
func (c Config) Validate() error {
	c.SetDefaults()
	errs := []error{
		withPath("url", c.validateURL()),
		withPath("url", c.validateCleartext()),
		withPath("batch", sinks.CheckRange(c.Batch, 1, maxBatch)),
		withPath("lanes", sinks.CheckRange(c.Lanes, 1, maxLanes)),
		withPath("timeout", sinks.CheckTimeout(c.Timeout, minTimeout, maxTimeout)),
		withPath("tls.cert", c.TLS.Validate()),
	}
	names := map[string]bool{}
	for i, h := range c.Headers {
		path := fmt.Sprintf("headers[%d]", i)
		errs = append(errs, withPath(path, c.validateHeader(h, names)))
		names[http.CanonicalHeaderKey(h.Name)] = true
	}
	return errors.Join(errs...)
}

// Origin returns the scheme and host of the URL. The rest may hold a secret.
func (c Config) Origin() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// ValidateFormat checks that changes can be posted in the format f.
func (c Config) ValidateFormat(f format.Format) error {
	c.SetDefaults()
	switch {
	case f != format.CloudEvents && f != format.CloudEventsStructured:
		return fmt.Errorf("a webhook requires CloudEvents; use the format cloudevents or cloudevents-structured, not %s", f)
	case c.Batch > 1 && f != format.CloudEventsStructured:
		return errors.New("webhook.batch puts events into a JSON array, which requires cloudevents-structured")
	}
	return nil
}

func withPath(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("webhook.%s: %w", path, err)
}

func (c Config) validateURL() error {
	if c.URL == "" {
		return errors.New("required; for example https://receiver.example/events")
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "": // the address itself is not shown: it may hold a password
		return errors.New("not of the form https://host/path")
	case u.Hostname() == "" || u.Port() != "" && !sinks.IsPort(u.Port()):
		return errors.New("not of the form https://host:port/path, with a port from 1 to 65535")
	case sinks.CheckHost(u.Hostname()) != nil:
		return sinks.CheckHost(u.Hostname())
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("scheme %q is not one of https, http", u.Scheme)
	case u.User != nil:
		return errors.New("holds a user; put credentials into webhook.headers or webhook.bearerToken")
	case u.Fragment != "":
		return errors.New("holds a fragment (#), which is never sent; remove it, or write %23")
	case u.Scheme == "http" && c.TLS != credentials.TLS{}:
		return errors.New("webhook.tls is set and the scheme is http; write https")
	}
	return nil
}

func (c Config) isCleartext() bool {
	u, err := url.Parse(c.URL)
	return err == nil && u.Scheme == "http" && u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback()
}

// validateCleartext rejects credentials that would cross the network unencrypted, unless that is allowed.
func (c Config) validateCleartext() error {
	if c.AllowCleartextCredentials || !c.isCleartext() {
		return nil
	}
	carries := ""
	for _, h := range c.Headers {
		if h.Value.Path() != "" || credentialHeader.MatchString(h.Name) {
			carries = "the header " + h.Name
		}
	}
	if c.BearerToken != (credentials.Secret{}) {
		carries = "the bearerToken"
	}
	if carries == "" {
		return nil
	}
	return fmt.Errorf("http:// sends %s unencrypted; use https://, "+
		"or set webhook.allowCleartextCredentials: true on a trusted network", carries)
}

var credentialHeader = regexp.MustCompile(`(?i)auth|cookie|token|secret|password|credential|key|signature`)

// Files returns the files that the sink reads for its connections.
func (c Config) Files() []credentials.File { return c.TLS.Files("webhook.tls") }

// headerName matches a token (RFC 9110, section 5.1).
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (c Config) validateHeader(h Header, taken map[string]bool) error {
	name := http.CanonicalHeaderKey(h.Name)
	switch {
	case !headerName.MatchString(h.Name):
		return fmt.Errorf("%q is not a header name", h.Name)
	case taken[name]:
		return fmt.Errorf("%s is given twice", name)
	case slices.Contains([]string{"Host", "Content-Type", "Content-Length", "Transfer-Encoding"}, name) ||
		strings.HasPrefix(name, "Ce-"):
		return fmt.Errorf("%s is set by the exporter", name)
	case name == "Authorization" && c.BearerToken != credentials.Secret{}:
		return errors.New("webhook.bearerToken sets Authorization as well; use only one of them")
	case h.Value == credentials.Secret{}:
		return fmt.Errorf("%s needs a value", name)
	case !isHeaderValue(h.Value):
		return fmt.Errorf("the value of %s has a character that a header cannot have", name)
	}
	return nil
}

// isHeaderValue reports whether a header can have the value (RFC 9110, section 5.5), as far as that is known without a file.
func isHeaderValue(value credentials.Secret) bool {
	if value.Path() != "" {
		return true
	}
	_, err := readHeader(value)
	return err == nil
}
