package natsserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// patience bounds waits that end by a condition when all is well.
const patience = 3 * time.Minute

// request asks and fails the test if there is no answer.
func request(t *testing.T, s *Server, subject, payload string) string {
	t.Helper()
	answer, err := ask(s, subject, payload, patience)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// ask speaks the client protocol by hand: it publishes with a reply subject and returns the first answer's payload.
func ask(s *Server, subject, payload string, timeout time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", ports.Address(s.port), timeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false}\r\nSUB answer 1\r\nPUB %s answer %d\r\n%s\r\n", subject, len(payload), payload)
	if err != nil {
		return "", err
	}
	reader := bufio.NewReader(conn)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return "", err
		}
		var size int
		if _, err := fmt.Sscanf(line, "MSG answer 1 %d", &size); err != nil {
			continue // INFO, PING
		}
		body := make([]byte, size)
		_, err = io.ReadFull(reader, body)
		return string(body), err
	}
}

func TestAStreamSurvivesKillAndRestart(t *testing.T) {
	require.Integration(t)
	s, err := Start(t.Context(), Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	line, err := greeting(t.Context(), strings.TrimPrefix(s.URL(), "nats://"))
	if err != nil || !strings.Contains(line, `"version":"2.`) {
		t.Fatalf("greeting: %q, %v", line, err)
	}
	created := request(t, s, "$JS.API.STREAM.CREATE.K8S", `{"name":"K8S","subjects":["k8s.>"],"storage":"file"}`)
	if strings.Contains(created, `"error"`) {
		t.Fatalf("create a stream: %s", created)
	}
	url := s.URL()
	if ack := request(t, s, "k8s.core.pods", "one"); !strings.Contains(ack, `"seq":1`) {
		t.Fatalf("publish: %s", ack)
	}
	if err := errors.Join(s.Kill(), s.Restart(t.Context()), s.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	if ack := request(t, s, "k8s.core.pods", "two"); !strings.Contains(ack, `"seq":2`) || s.URL() != url {
		t.Fatalf("publish after a restart at %s: %s", s.URL(), ack)
	}
}

func TestExtraConfigurationCounts(t *testing.T) {
	require.Integration(t)
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Config: "authorization { user: u, password: p }\n"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	line, err := greeting(t.Context(), ports.Address(s.port))
	if err != nil || !strings.Contains(line, `"auth_required":true`) {
		t.Fatalf("greeting: %q, %v", line, err)
	}
}

func TestAReplicatedStreamOutlivesOneServer(t *testing.T) {
	require.Integration(t)
	servers, err := StartCluster(t.Context(), t.TempDir(), 3, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := servers.Stop(); err != nil {
			t.Error(err)
		}
	}()
	createStream := `{"name":"K8S","subjects":["k8s.>"],"storage":"file","num_replicas":3}`
	askUntil(t, servers[0], "$JS.API.STREAM.CREATE.K8S", createStream, `"config":`)
	if err := servers[2].Kill(); err != nil {
		t.Fatal(err)
	}
	askUntil(t, servers[0], "k8s.core.pods", "one", `"seq":`)
	if err := errors.Join(servers[2].Restart(t.Context()), servers.WaitHealthy(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// askUntil asks again and again until an answer has these words: where servers have just found each other, or lost one that
// led, there may be no leader, and then no answer.
func askUntil(t *testing.T, s *Server, subject, payload, words string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		answer, err := ask(s, subject, payload, 2*time.Second)
		if err == nil && strings.Contains(answer, words) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %q, %v; want %s", subject, answer, err, words)
		}
	}
}
