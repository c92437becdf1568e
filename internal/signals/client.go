package signals

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// Client asks one exporter, at the socket in the directory of its journal or at its admin server.
type Client struct {
	address   string // for messages
	url       string
	tokenFile string // "": none is needed
	http      *http.Client
}

// UnansweredError is returned if no exporter answers.
type UnansweredError struct {
	Address string
	Err     error
}

func (e *UnansweredError) Error() string {
	remedy := "is it running, on this machine and as this user?"
	if strings.Contains(e.Address, "://") {
		remedy = "is it running, and is this the address of its admin server?"
	}
	return fmt.Sprintf("no exporter answers at %s: %v; %s", e.Address, e.Err, remedy)
}

func (e *UnansweredError) Unwrap() error { return e.Err }

// DeniedError is returned if an exporter takes no signals from this client.
type DeniedError struct{ Reason string }

func (e *DeniedError) Error() string { return e.Reason }

const (
	maxAnswerBytes = 64 << 20
	serverTimeout  = 30 * time.Second // of an admin server; signals are answered within ten seconds
)

// NewClient returns a client of the exporter with its journal in a directory. It opens no connection.
func NewClient(dir string) (*Client, error) {
	socket, err := SocketPath(dir)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	return &Client{address: socket, url: "http://exporter", http: &http.Client{Transport: transport}}, nil
}

// NewServerClient returns a client of the exporter with its admin server at a URL, and the token in a file. It sends the
// token over http:// to this machine only, unless cleartext is set. It opens no connection.
func NewServerClient(server, tokenFile string, cleartext bool) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("--server is no URL such as http://localhost:8080 or https://exporter.example.com")
	}
	if u.Scheme == "http" && !cleartext && u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback() {
		return nil, fmt.Errorf("--server %s sends the token in cleartext over the network: use https://, or kubectl port-forward and "+
			"http://localhost, or --allow-cleartext-credentials in a trusted network", server)
	}
	if _, err := ReadToken(credentials.InFile(tokenFile)); err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}
	noRedirects := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // the token is for this server
	return &Client{
		address: server, url: strings.TrimSuffix(server, "/"), tokenFile: tokenFile,
		http: &http.Client{Transport: transport, Timeout: serverTimeout, CheckRedirect: noRedirects},
	}, nil
}

// Submit asks for a signal. It returns the errors of [Handler], an [InvalidError], an [UnansweredError] or a [DeniedError].
func (c *Client) Submit(ctx context.Context, r Request) (Signal, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Signal{}, err
	}
	a, err := c.request(ctx, http.MethodPost, Path, body)
	if len(a.Signals) != 1 {
		return Signal{}, err
	}
	return a.Signals[0], err
}

// List returns all signals that the exporter keeps, the oldest first.
func (c *Client) List(ctx context.Context) ([]Signal, error) {
	a, err := c.request(ctx, http.MethodGet, Path, nil)
	return a.Signals, err
}

// Letters returns dead letters as [Handler] does. An exporter answers that at its socket alone.
func (c *Client) Letters(ctx context.Context, sink string, offset, after uint64) ([]json.RawMessage, error) {
	of := url.Values{"sink": {sink}, "offset": {strconv.FormatUint(offset, 10)}, "after": {strconv.FormatUint(after, 10)}}
	a, err := c.request(ctx, http.MethodGet, lettersPath+"?"+of.Encode(), nil)
	return a.Letters, err
}

func (c *Client) request(ctx context.Context, method, path string, body []byte) (a answer, err error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	if c.tokenFile != "" {
		token, err := ReadToken(credentials.InFile(c.tokenFile))
		if err != nil {
			return a, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.http.Do(r)
	if err != nil {
		if failed, found := errors.AsType[*net.OpError](err); found {
			err = failed.Err
		}
		return a, &UnansweredError{c.address, err}
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return a, &DeniedError{fmt.Sprintf("the exporter at %s does not accept the token in %s", c.address, c.tokenFile)}
	case http.StatusNotFound:
		return a, &DeniedError{fmt.Sprintf("the server at %s takes no signals: is it an exporter with admin.signals.token?", c.address)}
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswerBytes)).Decode(&a); err != nil {
		return a, &UnansweredError{c.address, fmt.Errorf("the answer %s is none of an exporter", response.Status)}
	}
	switch {
	case response.StatusCode == http.StatusServiceUnavailable:
		return a, &NotActiveError{a.Error}
	case response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusRequestEntityTooLarge:
		return a, &InvalidError{a.Error}
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// socketName is the name of the socket in the journal's directory.
const socketName = "signal.sock"

// maxSocketPath is how many bytes the path of a unix socket may have.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// SocketPath returns the path of the socket of an exporter with its journal in a directory. The error is that it is too
// long.
func SocketPath(dir string) (string, error) {
	path := filepath.Join(dir, socketName)
	if len(path) > maxSocketPath {
		return path, fmt.Errorf("the path of a unix socket has at most %d bytes, and %s has %d: signals need a journal.dir with a shorter path",
			maxSocketPath, path, len(path))
	}
	return path, nil
}

// Listen makes the socket in the directory of a journal whose lock the caller holds, so that no other exporter has it. It is
// for the caller's user alone. A socket that a process has left behind is replaced, and one that is answered is not.
func Listen(dir string) (net.Listener, error) {
	path, err := SocketPath(dir)
	if err != nil {
		return nil, err
	}
	if err := removeAbandonedSocket(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // the directory is private from the first moment on
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeAbandonedSocket removes a socket without a process that answers it.
func removeAbandonedSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket, and is left as it is: remove it", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s is answered by another process, and is left as it is", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
