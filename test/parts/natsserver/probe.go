package natsserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// probe keeps no connections: a server that is stopped should not wait for them.
var probe = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Healthy returns nil if the server reports itself healthy: JetStream is up, its streams are recovered, and in a
// cluster it knows the leader. It asks once and does not wait.
func (s *Server) Healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.MonitorURL()+"/healthz", nil)
	if err != nil {
		return err
	}
	if err := process.ExpectOK(probe, request); err != nil {
		return fmt.Errorf("NATS server %s is not healthy: %w", s.name, err)
	}
	return nil
}

// greets returns nil if the server sends its INFO line to a client and has JetStream.
func (s *Server) greets(ctx context.Context) error {
	line, err := greeting(ctx, ports.Address(s.port))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "INFO {") || !strings.Contains(line, `"jetstream":true`) {
		return fmt.Errorf("NATS server %s sends %q, want an INFO line with JetStream", s.name, line)
	}
	return nil
}

// greeting reads the first line that a server sends.
func greeting(ctx context.Context, address string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, bounded := ctx.Deadline()
	if !bounded {
		deadline = time.Now().Add(5 * time.Second)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}
