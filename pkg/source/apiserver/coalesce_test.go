package apiserver

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// coalescedPipe returns what a server writes to and what is read from.
func coalescedPipe(t *testing.T) (server, client net.Conn) {
	t.Helper()
	server, far := net.Pipe()
	client, err := coalesceReads(func(context.Context, string, string) (net.Conn, error) { return far, nil })(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

// readAfter reads once with a buffer of so many bytes and returns when the read was done.
func readAfter(t *testing.T, from io.Reader, size int, began time.Time) time.Duration {
	t.Helper()
	if _, err := from.Read(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

func TestWhatFollowsWithinTheIntervalIsReadAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := coalescedPipe(t)
		go func() {
			for _, text := range []string{"first", "second"} {
				_, _ = server.Write([]byte(text))
			}
			time.Sleep(time.Second)
			_, _ = server.Write([]byte("third"))
		}()
		began := time.Now()
		for i, want := range []time.Duration{0, readInterval, readInterval + time.Second} {
			if got := readAfter(t, client, 64, began); got != want {
				t.Errorf("read %d after %v, want %v", i+1, got, want)
			}
		}
	})
}

func TestAListIsNotSlowedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := coalescedPipe(t)
		go func() { _, _ = server.Write(make([]byte, 1<<20)) }()
		began := time.Now()
		for range 1 << 10 {
			if got := readAfter(t, client, 1<<10, began); got != 0 {
				t.Fatalf("a full buffer was read after %v", got)
			}
		}
	})
}
