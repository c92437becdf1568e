package signals

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Client asks the exporter whose journal is in a directory.
type Client struct {
	socket string
	http   *http.Client
}

// UnansweredError is returned if no exporter answers.
type UnansweredError struct {
	Socket string
	Err    error
}

func (e *UnansweredError) Error() string {
	return fmt.Sprintf("no exporter answers at %s: %v; is it running, on this machine and as this user?", e.Socket, e.Err)
}

func (e *UnansweredError) Unwrap() error { return e.Err }

// NewClient returns a client. It opens no connection.
func NewClient(dir string) (*Client, error) {
	socket, err := SocketPath(dir)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Submit asks for a signal. It returns the errors of [Handler], or an [UnansweredError].
func (c *Client) Submit(ctx context.Context, r Request) (Signal, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Signal{}, err
	}
	all, err := c.request(ctx, http.MethodPost, body)
	if len(all) != 1 {
		return Signal{}, err
	}
	return all[0], err
}

// List returns all signals that the exporter keeps, the oldest first.
func (c *Client) List(ctx context.Context) ([]Signal, error) {
	return c.request(ctx, http.MethodGet, nil)
}

func (c *Client) request(ctx context.Context, method string, body []byte) ([]Signal, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://exporter"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		var failed *net.OpError
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return nil, &UnansweredError{c.socket, err}
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return nil, &UnansweredError{c.socket, err}
	}
	switch {
	case response.StatusCode == http.StatusServiceUnavailable:
		return nil, &NotActiveError{a.Error}
	case a.Error != "":
		return a.Signals, errors.New(a.Error)
	}
	return a.Signals, nil
}
