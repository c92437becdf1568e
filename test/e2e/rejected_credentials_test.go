package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// The exporter's password in Kafka, and a wrong one.
const knownPassword, refusedPassword = "open-sesame", "hunter2"

// TestRejectedCredentialsAreReportedAndReplacedWithoutRestart starts the exporter with a password that Kafka does not
// know. It is not ready and names the sink and where to look, once however often it tries, and never the password; the
// other sink goes on. When the file holds the right one, everything arrives, once. A second start, with nothing to
// deliver, is not ready either while Kafka is away or refuses the password, is when it lets us in, and not when it goes
// away again.
func TestRejectedCredentialsAreReportedAndReplacedWithoutRestart(t *testing.T) {
	require.Long(t)
	own := *servers(t)
	dir := t.TempDir()
	own.kafka = guarded(t, filepath.Join(dir, "ca.pem"))
	password, log := filepath.Join(dir, "password"), ""
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newRestrictedFixtureIn(t, &own, kinds, func(settings *exporter.Settings) {
		log = filepath.Join(settings.Dir, "exporter.log")
		settings.Kafka = map[string]any{
			"brokers": []string{own.kafka.SecureAddress()},
			"tls":     map[string]any{"enabled": true, "ca": filepath.Join(dir, "ca.pem")},
			"sasl":    map[string]any{"mechanism": "plain", "username": "exporter", "password": map[string]any{"file": password}},
		}
	})
	s.must(os.WriteFile(password, []byte(refusedPassword), 0o600))
	s.must(s.exporter.Launch(t.Context()))
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]sink/kafka SinkUnauthorized: Kafka refuses the credentials")
	s.must(s.load(20, kinds).Wait())
	s.awaitHistory(s.buses[1])
	s.awaitMetric(`kubecdc_sink_gate_closed{sink="kafka"}`, "1")
	s.awaitRetries("kafka", 5)
	var told strings.Builder
	s.await(s.buses[1], func([]bus.Record) string {
		_, text, err := s.exporter.Get(t.Context(), "/readyz?verbose")
		s.must(err)
		if told.WriteString(text); strings.Count(text, "[-]") != 1 {
			return "the one sink alone to be not ready:\n" + text
		}
		return ""
	})
	for _, path := range []string{"/metrics", "/"} {
		_, text, err := s.exporter.Get(t.Context(), path)
		s.must(err)
		told.WriteString(text)
	}
	if n := strings.Count(ofSink(readFile(t, log), "kafka"), "Kafka refuses the credentials"); n != 1 {
		t.Errorf("it says %d times why nothing is delivered:\n%s", n, readFile(t, log))
	}

	writePassword := func(text string) {
		s.must(os.WriteFile(password+".new", []byte(text), 0o600))
		s.must(os.Rename(password+".new", password))
	}
	writePassword(knownPassword)
	s.awaitAll()
	s.awaitAnswer("/readyz", http.StatusOK, "")
	s.awaitMetric(`kubecdc_sink_gate_closed{sink="kafka"}`, "0")
	s.judge(oracle.Rules{})
	s.repeatsNothing()

	told.WriteString(readFile(t, log))
	for _, secret := range []string{knownPassword, refusedPassword} {
		if strings.Contains(told.String(), secret) {
			t.Errorf("a password is told:\n%s", told.String())
		}
	}
	if !strings.Contains(ofSink(readFile(t, log), "kafka"), "delivers") {
		t.Errorf("it does not say that it is cured:\n%s", readFile(t, log))
	}

	// The same with nothing to deliver.
	s.must(s.exporter.Stop())
	s.must(own.kafka.Kill())
	s.must(s.exporter.Launch(t.Context()))
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]sink/kafka SinkUnreachable: no broker of "+own.kafka.SecureAddress()+" answers")
	writePassword(refusedPassword)
	s.must(own.kafka.Restart(t.Context()))
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]sink/kafka SinkUnauthorized: Kafka refuses the credentials")
	s.awaitMetric(`kubecdc_sink_retries_total{sink="kafka"}`, "0")
	writePassword(knownPassword)
	s.awaitAnswer("/readyz", http.StatusOK, "")
	s.must(own.kafka.Kill())
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]sink/kafka SinkUnreachable: no broker of "+own.kafka.SecureAddress()+" answers")
	s.must(own.kafka.Restart(t.Context()))
	s.awaitAnswer("/readyz", http.StatusOK, "")
	s.awaitMetric(`kubecdc_sink_retries_total{sink="kafka"}`, "0")
}

// guarded starts a broker that asks for a password, beside a listener that does not. The authority of its certificate goes
// into a file.
func guarded(t *testing.T, caFile string) *kafka.Broker {
	t.Helper()
	ca := certificates.New(t)
	if err := os.WriteFile(caFile, ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := ca.Issue(t)
	b, err := kafka.Start(t.Context(), kafka.Options{Dir: t.TempDir(), Secure: &kafka.Secure{
		Certificate: string(cert), Key: string(key), Mechanisms: map[string]string{
			"PLAIN": `org.apache.kafka.common.security.plain.PlainLoginModule required user_exporter="` + knownPassword + `";`,
		}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// ofSink are the lines of a log that are about a sink.
func ofSink(log, sink string) (lines string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, " sink="+sink+" ") {
			lines += line
		}
	}
	return lines
}

// awaitRetries waits until so many attempts of a sink have failed.
func (s *fixture) awaitRetries(sink string, least int) {
	s.t.Helper()
	name := fmt.Sprintf("kubecdc_sink_retries_total{sink=%q}", sink)
	s.await(s.buses[1], func([]bus.Record) string {
		_, text, err := s.exporter.Get(s.t.Context(), "/metrics")
		s.must(err)
		if n := series(text, name)[name]; n < least {
			return fmt.Sprintf("%d of %d retries", n, least)
		}
		return ""
	})
}

// repeatsNothing fails the test if Kafka holds anything twice.
func (s *fixture) repeatsNothing() {
	s.t.Helper()
	ids := make(map[string]bool)
	for _, r := range s.buses[0].records {
		if ids[r.ID] {
			s.t.Errorf("%s is there twice", r.ID)
		}
		ids[r.ID] = true
	}
}
