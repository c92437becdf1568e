package audit_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

func TestListedNameOfOtherAuthorityIsRejected(t *testing.T) {
	s := startWebhook(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.clientConfig(t, certificates.New(t), "kube-apiserver"), DisableKeepAlives: true}}
	if response, err := client.Post(s.url, "application/json", strings.NewReader(list)); err == nil {
		t.Errorf("%s, %v", response.Status, response.Body.Close())
	}
	awaitCondition(t, "it is counted", func() bool { return s.RejectedRequests() >= 2 }) // the first was the probe of startServing
	if len(s.stored) != 0 {
		t.Errorf("%d events were stored", len(s.stored))
	}
}

func TestListenRetriesWhilePortIsTaken(t *testing.T) {
	s := startWebhook(t)
	second := newWebhookAt(t, s.listen)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- second.Run(ctx) }()
	awaitCondition(t, "the problem is reported", func() bool {
		status, _ := second.Status()
		return strings.Contains(status.Remedy, "audit.webhook.listen")
	})
	s.stop()
	awaitCondition(t, "it is served", func() bool { status, _ := second.Status(); return status.OK() })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRotatedCertificatesAreReloaded(t *testing.T) {
	s := startWebhook(t)
	before := s.authority
	s.authority = certificates.New(t)
	s.authority.IssueTo(t, s.dir)
	awaitCondition(t, "the new authority is trusted", func() bool {
		code, err := s.postAs(t, "kube-apiserver", list)
		return err == nil && code == http.StatusOK
	})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.clientConfig(t, before, "kube-apiserver"), DisableKeepAlives: true}}
	if response, err := client.Post(s.url, "application/json", strings.NewReader(list)); err == nil {
		t.Errorf("the old authority is trusted: %s, %v", response.Status, response.Body.Close())
	}
	if err := os.WriteFile(filepath.Join(s.dir, "cert.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, "the problem is reported", func() bool {
		if code := s.awaitAnswer(t, "kube-apiserver", list); code != http.StatusOK {
			t.Fatalf("the previous certificates are not used: %d", code)
		}
		status, _ := s.Status()
		return strings.Contains(status.Cause, "audit.webhook.certificate")
	})
}

// TestConnectionOfRemovedAuthorityIsClosed sends over one lasting connection while the authority is replaced. Events are
// accepted again with a certificate of the new authority.
func TestConnectionOfRemovedAuthorityIsClosed(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := startWebhook(t)
		transport := &http.Transport{TLSClientConfig: s.clientConfig(t, s.authority, "kube-apiserver"), ForceAttemptHTTP2: http2}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		post := func() (int, error) {
			response, err := client.Post(s.url, "application/json", strings.NewReader(list))
			if err != nil {
				return 0, err
			}
			_, _ = io.Copy(io.Discard, response.Body)
			return response.StatusCode, response.Body.Close()
		}
		awaitCondition(t, "it is accepted", func() bool { code, err := post(); return err == nil && code == http.StatusOK })
		s.authority = certificates.New(t)
		s.authority.IssueTo(t, s.dir)
		awaitCondition(t, "it is rejected, and the client retries", func() bool {
			code, err := post()
			return err == nil && code == http.StatusServiceUnavailable
		})
		if code, err := post(); err == nil {
			t.Errorf("the connection is still open: %d", code)
		}
		if code := s.awaitAnswer(t, "kube-apiserver", list); code != http.StatusOK {
			t.Errorf("a certificate of the new authority: %d", code)
		}
	}
}

func TestOversizedBodyIsReportedAsLoss(t *testing.T) {
	s := startWebhook(t)
	code, err := s.postAs(t, "kube-apiserver", `{"apiVersion":"audit.k8s.io/v1","items":[`+strings.Repeat(" ", 33<<20)+`]}`)
	if err == nil && code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d", code)
	}
	awaitCondition(t, "the loss is recorded", func() bool {
		reason := s.lost.Load()
		return reason != nil && strings.Contains(*reason, "--audit-webhook-batch-max-size")
	})
}

// TestStalledConnectionsDoNotBlockOthers opens idle connections and requests that stop in the middle of their bodies while
// an API server sends.
func TestStalledConnectionsDoNotBlockOthers(t *testing.T) {
	s := startWebhook(t)
	for range 40 {
		c, err := net.Dial("tcp", s.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	config := s.clientConfig(t, s.authority, "kube-apiserver")
	for range 40 {
		var c *tls.Conn
		awaitCondition(t, "a handshake", func() (ended bool) {
			var err error
			c, err = tls.Dial("tcp", s.listen, config)
			return err == nil
		})
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if code := s.awaitAnswer(t, "kube-apiserver", list); code != http.StatusOK {
			t.Fatalf("%d", code)
		}
	}
}

// TestFloodsKeepNoAPIServerOut opens connections as fast as it can: silent ones, and ones of a client
// with a certificate that is not listed. An API server that was there before keeps its connection, though it shares
// the address of the flood, and one with an address of its own gets in at its first attempt.
func TestFloodsKeepNoAPIServerOut(t *testing.T) {
	s := startWebhook(t)
	known := &http.Client{Transport: &http.Transport{TLSClientConfig: s.clientConfig(t, s.authority, "kube-apiserver")}}
	defer known.CloseIdleConnections()
	connections := map[string]bool{}
	post := func() {
		trace := &httptrace.ClientTrace{GotConn: func(of httptrace.GotConnInfo) { connections[of.Conn.LocalAddr().String()] = true }}
		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, s.url, strings.NewReader(list))
		if err != nil {
			t.Fatal(err)
		}
		response, err := known.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	post()
	unlisted := s.clientConfig(t, s.authority, "somebody")
	for name, attack := range map[string]func(c net.Conn){
		"silent":     func(net.Conn) {},
		"not listed": func(c net.Conn) { _ = tls.Client(c, unlisted).Handshake() },
	} {
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var opened atomic.Int64
		for i := range 2 {
			all.Go(func() {
				from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i))}}
				var held []net.Conn
				for ctx.Err() == nil {
					if c, err := from.Dial("tcp", s.listen); err == nil {
						attack(c)
						opened.Add(1)
						held = append(held, c)
					}
					if len(held) > 800 {
						_ = held[0].Close()
						held = held[1:]
					}
				}
				for _, c := range held {
					_ = c.Close()
				}
			})
		}
		awaitCondition(t, "the port is flooded", func() bool { return opened.Load() > 2000 })
		for range 20 {
			if code, err := s.postFrom(t, net.IPv4(127, 0, 0, 3), "kube-apiserver", list); code != http.StatusOK {
				t.Errorf("%s: a new API server got %d, %v", name, code, err)
			}
		}
		post()
		end()
		all.Wait()
		if status := s.PortStatus(); name == "silent" && status.Code != condition.PortFlooded {
			t.Errorf("the condition is %q", status.Code)
		}
	}
	if len(connections) != 1 {
		t.Errorf("the API server needed %d connections", len(connections))
	}
}

// TestBodyFloodMemoryIsBounded posts far more than the memory bound while nothing can be stored.
func TestBodyFloodMemoryIsBounded(t *testing.T) {
	s := startWebhook(t)
	s.mu.Lock() // nothing can be stored
	body := `{"apiVersion":"audit.k8s.io/v1","kind":"EventList","items":[` + strings.Repeat(" ", 8<<20) +
		`{"auditID":"1","stage":"ResponseComplete","verb":"patch"}]}`
	before := heapInUse()
	var all sync.WaitGroup
	for range 30 { // 240 MiB
		all.Go(func() {
			// An API server repeats a batch without an answer.
			for code := 0; code != http.StatusOK; {
				code, _ = s.postAs(t, "kube-apiserver", body)
			}
		})
	}
	awaitCondition(t, "the memory is used", func() bool { return heapInUse()-before > 40<<20 })
	for range 50 {
		if grown := heapInUse() - before; grown > 160<<20 {
			t.Fatalf("%d MiB", grown>>20)
		}
		runtime.Gosched()
	}
	s.mu.Unlock()
	all.Wait()
	if len(s.stored) != 30 {
		t.Errorf("%d events were stored", len(s.stored))
	}
}

// heapInUse returns the live heap in bytes.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
