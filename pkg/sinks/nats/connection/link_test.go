package connection

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestAConnectionIsAwaitedUntilTheLibraryReportsIt delays the library's connect handler: until it runs, the sink would
// publish while its status is not connected.
func TestAConnectionIsAwaitedUntilTheLibraryReportsIt(t *testing.T) {
	server := natsserver.ForTest(t, natsserver.Options{})
	var absence Outage
	absence.mu.Lock()
	l := Dial(optionsFor(server.URL(), 3*time.Minute), &absence)
	<-l.dialled
	for !l.nc.IsConnected() && t.Context().Err() == nil { // the first attempt may have taken too long
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := l.awaitConnected(ctx); !l.nc.IsConnected() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connected is %v, awaited: %v", l.nc.IsConnected(), err)
	}
	absence.mu.Unlock()
	if err := l.WaitConnected(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestASilentServerKeepsNoConnectionFromAnother gives links two servers, of which one accepts connections and sends nothing,
// as one that is frozen. Each link picks by chance.
func TestASilentServerKeepsNoConnectionFromAnother(t *testing.T) {
	server := natsserver.ForTest(t, natsserver.Options{})
	frozen := listen(t, func(net.Conn) {})
	var links sync.WaitGroup
	for range 8 {
		links.Go(func() { requireConnected(t, "nats://"+frozen+","+server.URL(), time.Minute) })
	}
	links.Wait()
}

// TestASilentServerDelaysAnotherLittle: the first one has a part of the time that one alone may take, and so has the first
// one after a server that has sent something.
func TestASilentServerDelaysAnotherLittle(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	d := &dialer{ctx: t.Context()}
	for range 2 {
		for i, want := range []time.Duration{minPatience, 2 * minPatience, 4 * minPatience, maxPatience, maxPatience} {
			if got := d.nextPatience(); got != want || minPatience > maxPatience/4 {
				t.Errorf("server %d has %v, want %v", i, got, want)
			}
		}
		heard := &boundConn{Conn: client, dialer: d, silence: time.NewTimer(time.Hour)}
		go server.Write([]byte("INFO")) //nolint:errcheck // what is read shows
		if n, err := heard.Read(make([]byte, 4)); n == 0 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
}

// TestASlowServerIsWaitedForAtLast passes on what the server sends with a delay that is above the first patience.
func TestASlowServerIsWaitedForAtLast(t *testing.T) {
	server := natsserver.ForTest(t, natsserver.Options{})
	slow := listen(t, func(client net.Conn) {
		target, err := net.Dial("tcp", strings.TrimPrefix(server.URL(), "nats://"))
		if err != nil {
			return
		}
		defer target.Close()
		go func() {
			_, _ = io.Copy(target, client)
			target.Close()
		}()
		time.Sleep(2 * minPatience)
		_, _ = io.Copy(client, target)
	})
	requireConnected(t, "nats://"+slow, time.Minute)
}

// optionsFor are the options of a link without credentials.
func optionsFor(url string, timeout time.Duration) Options {
	return Options{URL: url, Servers: url, InboxPrefix: nats.InboxPrefix[:len(nats.InboxPrefix)-1], Timeout: timeout,
		Authenticate: func() ([]nats.Option, func() bool, error) { return nil, nil, nil }}
}

// listen serves each connection in a goroutine, and returns the address. Connections are closed with the test.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var accepted []net.Conn
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted = append(accepted, conn)
			mu.Unlock()
			all.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range accepted {
			conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

// requireConnected dials a link, which must be connected within a time.
func requireConnected(t *testing.T, url string, within time.Duration) {
	t.Helper()
	l := Dial(optionsFor(url, within), new(Outage))
	err := l.WaitConnected(t.Context())
	for end := time.Now().Add(within); err != nil && time.Now().Before(end); {
		err = l.WaitConnected(t.Context())
	}
	if err != nil {
		t.Error(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
