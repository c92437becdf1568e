package proxy

import (
	"bufio"
	"fmt"
	"net"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// TestConnectionsAlternateBetweenBackendsAndEndWhenCut also passes over a backend that does not answer.
func TestConnectionsAlternateBetweenBackendsAndEndWhenCut(t *testing.T) {
	p, err := Start(greeter(t, "a"), nobody(t), greeter(t, "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	var conns []*bufio.Reader
	for i, want := range []string{"a\n", "b\n", "a\n"} {
		conn, err := net.Dial("tcp", p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		r := bufio.NewReader(conn)
		if got, err := r.ReadString('\n'); got != want {
			t.Fatalf("connection %d: %q (%v), want %q", i, got, err, want)
		}
		conns = append(conns, r)
	}
	if n := p.Cut(); n != len(conns) {
		t.Errorf("%d connections were cut, want %d", n, len(conns))
	}
	for i, r := range conns {
		if _, err := r.ReadByte(); err == nil {
			t.Errorf("connection %d lives", i)
		}
	}
}

// greeter sends its name to every client, and then nothing.
func greeter(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprintln(conn, name)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	return listener.Addr().String()
}

// An address without a listener.
func nobody(t *testing.T) string {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports.Address(free[0])
}
