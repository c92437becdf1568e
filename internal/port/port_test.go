package port_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/internal/port"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// served is a port that answers GET /, and takes all requests.
type served struct {
	*port.Port
	lines bytes.Buffer
}

// serve serves a port until the test ends.
func serve(t *testing.T, l net.Listener) *served {
	s := &served{}
	s.Port = port.New("the port", slog.New(slog.NewTextHandler(&s.lines, nil)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, l, &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			port.Prove(r.Context())
		})})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// network is a listener in memory, for virtual time: connections end after seconds in which nothing comes, and a busy
// machine takes longer to open thousands.
type network struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newNetwork() *network {
	return &network{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *network) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *network) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *network) Addr() net.Addr { return &net.TCPAddr{} }

// remote is a connection from an address.
type remote struct {
	net.Conn
	from net.Addr
}

func (c remote) RemoteAddr() net.Addr { return c.from }

// connect opens a connection from an address, sends some text, and waits until the server waits for more.
func (l *network) connect(t *testing.T, from, text string) net.Conn {
	c, far := net.Pipe()
	l.accepted <- remote{far, &net.TCPAddr{IP: net.ParseIP(from)}}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, text) // it may have been dropped already
	synctest.Wait()
	return c
}

// isAnswered reports whether a request over a connection has an answer.
func isAnswered(c net.Conn) bool {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// TestNoFloodKeepsANewClientOut has connections held in each stage, by one address and by many.
func TestNoFloodKeepsANewClientOut(t *testing.T) {
	for name, text := range map[string]string{
		"silent": "", "unfinished": "GET / HTTP/1.1\r\nHost: a\r\nX-A: ", "with requests": "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		for from, address := range map[string]func(n int) string{
			"one address": func(int) string { return "127.0.0.1" },
			"many":        func(n int) string { return fmt.Sprintf("127.0.%d.%d", n/200, n%200+2) },
		} {
			t.Run(name+" from "+from, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newNetwork()
					s := serve(t, l)
					for n := range 2500 {
						l.connect(t, address(n), text)
						if n%100 == 0 && !isAnswered(l.connect(t, "127.0.0.1", "")) {
							t.Fatalf("a client has no answer after %d connections", n)
						}
					}
					if status := s.Status(); status.Code != condition.PortFlooded || !strings.Contains(status.Cause, "from 127.0.") {
						t.Errorf("the condition is %q, %q", status.Code, status.Cause)
					}
					if lines := strings.Count(s.lines.String(), "\n"); lines != 1 {
						t.Errorf("%d lines: %s", lines, s.lines.String())
					}
				})
			})
		}
	}
}

// TestAddressWithMostConnectionsGivesWay has a client keep its connections, silent and used ones, while another address
// floods the port.
func TestAddressWithMostConnectionsGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newNetwork()
		serve(t, l)
		silent, used := l.connect(t, "127.0.0.1", ""), l.connect(t, "127.0.0.1", "")
		if !isAnswered(used) {
			t.Fatal("no answer")
		}
		for range 1500 {
			for _, text := range []string{"", "GET ", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
				l.connect(t, "127.0.0.2", text)
			}
		}
		if !isAnswered(used) {
			t.Error("the connection with a request was dropped")
		}
		if !isAnswered(silent) {
			t.Error("the silent connection was dropped")
		}
	})
}

// floodMemory is what a flood may take, in bytes: 20 KiB for each of the 2,048 connections in the first two stages, and
// 1 KiB for each of the flood's own ends, which are in this process.
const floodMemory = 2048*20<<10 + floodSize<<10

const floodSize = 10_000 // unfinished requests, far more than there is room for

// TestFloodMemoryIsBounded sends a flood of unfinished requests.
func TestFloodMemoryIsBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l)
	before := memory()
	request := "GET / HTTP/1.1\r\nHost: a\r\nX-A: " + strings.Repeat("a", 7<<10)
	for range floodSize {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, request) // it may have been dropped already
		defer c.Close()
	}
	if grown := memory() - before; grown > floodMemory {
		t.Errorf("%d MiB", grown>>20)
	}
}

// memory returns the memory of live objects and of stacks, in bytes.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestUnfinishedRequestsEnd waits for the server to close a connection that sends a part of a request.
func TestUnfinishedRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newNetwork()
		serve(t, l)
		c := l.connect(t, "127.0.0.1", "GET / HTTP/1.1\r\n")
		began := time.Now()
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("after %v", took)
		}
	})
}
