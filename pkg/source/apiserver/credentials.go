package apiserver

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// LookInterval is the time between two looks at the files that hold the credentials.
const LookInterval = 2 * time.Second

// credentials holds the connections of a client with what its files say now. The files are read and their content compared,
// as for the configuration file, before a request and at once when the API server refuses the credentials: they are files
// that change. client-go's own readers look at some of them, some minutes later. It is safe for concurrent use.
type credentials struct {
	load    func() (*rest.Config, error)
	prepare func(*rest.Config) // adds the settings of this package
	current atomic.Pointer[connections]

	mu     sync.Mutex
	looked time.Time
	failed error
}

// connections are those of one state of the files.
type connections struct {
	digest [sha256.Size]byte
	config *rest.Config
	base   *url.URL
	plugin bool // a program gives the credentials, and another run may give others

	shared http.RoundTripper
	// fresh opens a connection for each request, which a load balancer may route to another API server. Over HTTP/2 all
	// requests would share one connection.
	fresh http.RoundTripper
}

// look reads the files, unless that was done within the last while. It returns the reason why they cannot be read; what was
// read before stays in use.
func (c *credentials) look(atMost time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < atMost {
		return c.failed
	}
	c.looked = time.Now()
	next, err := c.loadConnections()
	if c.failed = err; err != nil {
		return err
	}
	if before := c.current.Load(); before == nil || before.digest != next.digest {
		if err := next.open(c.prepare); err != nil {
			c.failed = err
			return err
		}
		c.current.Store(next)
		before.close()
	}
	return nil
}

// loadConnections reads everything, with the content of the files instead of their names.
func (c *credentials) loadConnections() (*connections, error) {
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	if config.BearerTokenFile != "" {
		token, err := os.ReadFile(config.BearerTokenFile)
		if err != nil {
			return nil, err
		}
		config.BearerToken = strings.TrimSpace(string(token))
	}
	config.CAFile, config.CertFile, config.KeyFile, config.BearerTokenFile = "", "", "", ""
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	proxy := ""
	if config.Proxy != nil {
		through, err := config.Proxy(&http.Request{URL: base})
		proxy = fmt.Sprint(through, err)
	}
	all, err := json.Marshal([]any{
		base, proxy, config.TLSClientConfig, config.Username, config.Password, config.BearerToken, config.Impersonate,
		config.AuthProvider, config.ExecProvider,
	})
	return &connections{digest: sha256.Sum256(all), config: config, base: base, plugin: config.ExecProvider != nil}, err
}

// open prepares the connections. It connects to nothing.
func (c *connections) open(prepare func(*rest.Config)) (err error) {
	prepare(c.config)
	if c.shared, err = rest.TransportFor(c.config); err == nil {
		single := rest.CopyConfig(c.config)
		single.NextProtos = []string{"http/1.1"}
		c.fresh, err = rest.TransportFor(single)
	}
	if err != nil {
		return fmt.Errorf("client for the API server at %s: %w", c.config.Host, err)
	}
	return nil
}

// close closes idle connections. c may be nil.
func (c *connections) close() {
	if c != nil {
		utilnet.CloseIdleConnectionsFor(c.shared) // http.Client asks the outermost wrapper only, which has no connections
		utilnet.CloseIdleConnectionsFor(c.fresh)
	}
}

// connector sends requests with the credentials that the files have now. Requests are made with the first address.
type connector struct {
	*credentials
	first *url.URL
	fresh bool
}

// RoundTrip sends a request, and once more if the credentials were refused and the files, or the program, may have others.
func (c *connector) RoundTrip(r *http.Request) (*http.Response, error) {
	_ = c.look(LookInterval) // the reason is that of Refresh
	used := c.current.Load()
	answer, err := c.send(used, r)
	if !refusesCredentials(answer, err) {
		return answer, err
	}
	_ = c.look(0)
	now := c.current.Load()
	if now == used && !used.plugin || r.Body != nil {
		return answer, err
	}
	if answer != nil {
		_ = answer.Body.Close() // discarded unread
	}
	return c.send(now, r)
}

func (c *connector) send(to *connections, r *http.Request) (*http.Response, error) {
	if *to.base != *c.first {
		r = r.Clone(r.Context())
		r.Host, r.URL.Scheme, r.URL.Host = "", to.base.Scheme, to.base.Host
		r.URL.Path = strings.TrimSuffix(to.base.Path, "/") + "/" +
			strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(c.first.Path, "/")), "/")
	}
	if c.fresh {
		return to.fresh.RoundTrip(r)
	}
	return to.shared.RoundTrip(r)
}

// refusesCredentials reports whether a server refuses the credentials, or has a certificate that they do not trust.
func refusesCredentials(answer *http.Response, err error) bool {
	if err == nil {
		return answer.StatusCode == http.StatusUnauthorized
	}
	refused, isNetwork := errors.AsType[*net.OpError](err)
	return errors.As(err, new(*tls.CertificateVerificationError)) || isNetwork && refused.Op == "remote error"
}
