package kafka

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func startFakeRegistry(t *testing.T) *srfake.Registry {
	t.Helper()
	r := srfake.New()
	t.Cleanup(r.Close)
	return r
}

// wantSchemas fails the test unless the records of a topic begin with the IDs of its subjects, and are of these changes.
func wantSchemas(t *testing.T, brokers []string, r *srfake.Registry, topic string, messages []sinks.Message) {
	t.Helper()
	records := readTopics(t, brokers, topic)
	if len(records) != len(messages) {
		t.Fatalf("%d records, want %d", len(records), len(messages))
	}
	key, isKey := r.GetSchema(topic+"-key", 1)
	value, isValue := r.GetSchema(topic+"-value", 1)
	for i, record := range records {
		if !isKey || !isValue || !bytes.HasPrefix(record.Key, startOf(key.ID)) || !bytes.HasPrefix(record.Value, startOf(value.ID)) {
			t.Fatalf("key %q and value %q, of the schemas %d and %d", record.Key, record.Value, key.ID, value.ID)
		}
		stored, ours := format.ReadStored(record.Value, func(name string) string { return recordHeader(record, name) })
		if c := messages[i].Change; !ours || stored.ID != c.ID() || string(stored.After) != string(c.After) {
			t.Fatalf("record %d is read as %+v, %t", i, stored, ours)
		}
	}
}

// startOf is how a record begins that names this schema.
func startOf(id int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(id)) }

// TestRowsWaitForARegistryThatDoesNotRegister: each fault has a cause and a remedy and no secret, concerns this topic only,
// and ends with the fault.
func TestRowsWaitForARegistryThatDoesNotRegister(t *testing.T) {
	t.Parallel()
	answers := func(status int, body string) srfake.Interceptor {
		return func(w http.ResponseWriter, request *http.Request) bool {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "no", request.Header.Get("Authorization")))
			return true
		}
	}
	faults := map[string]struct {
		answer    srfake.Interceptor
		code      condition.Code
		says, tip string
	}{
		"credentials":  {answers(401, "no"), condition.SinkUnauthorized, "401 Unauthorized", "kafka.registry.username"},
		"incompatible": {answers(409, `{"error_code":409,"message":"no"}`), condition.SinkMisconfigured, `-key" has another schema`, "delete that subject"},
		"read-only":    {answers(422, `{"error_code":42205,"message":"no"}`), condition.SinkMisconfigured, "code 42205", "read-only"},
		"moved":        {answers(307, ""), condition.SinkMisconfigured, "307", "kafka.registry.url"},
		"another API":  {answers(404, "<html>no"), condition.SinkMisconfigured, "404", "kafka.registry.url"},
		"busy":         {answers(503, ""), condition.SinkBusy, "503", ""},
		"failing":      {answers(500, ""), condition.SinkFailing, "500", "log of the registry"},
		"no JSON":      {answers(200, "<html>no"), condition.SinkMisconfigured, "does not answer as a registry", "kafka.registry.url"},
		"no ID":        {answers(200, `{}`), condition.SinkMisconfigured, "does not answer as a registry", "kafka.registry.url"},
		"without end": {func(w http.ResponseWriter, request *http.Request) bool {
			for request.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
			return true
		}, condition.SinkMisconfigured, "does not answer as a registry", "kafka.registry.url"},
		"closing": {func(w http.ResponseWriter, _ *http.Request) bool {
			conn, _, err := http.NewResponseController(w).Hijack()
			return err == nil && conn.Close() == nil
		}, condition.SinkUnreachable, "closed the connection", ""},
		"silent": {func(_ http.ResponseWriter, request *http.Request) bool {
			_, _ = io.Copy(io.Discard, request.Body) // only then the server sees that the client has left
			<-request.Context().Done()
			return true
		}, condition.SinkTimeout, "not answered", ""},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
			r := startFakeRegistry(t)
			s := openSinkWith(t, Config{Brokers: brokers, Topic: topicA, Registry: Registry{
				URL: r.URL(), Username: "exporter", Password: credentials.Text("hunter2"),
			}}, format.DebeziumAvro, slog.New(slog.DiscardHandler))
			r.Intercept(fault.answer)
			patient := s.schemas.timeout
			if name == "silent" {
				s.schemas.timeout = 50 * time.Millisecond
			}
			lane, changes := laneName(topicA, 0, 1), pods("a", 1, 3)
			n, err := s.Publish(t.Context(), lane, changes)
			problem := condition.ProblemOf(err, "")
			if n != 0 || errors.As(err, new(*sinks.UnavailableError)) || problem.Code != fault.code ||
				!strings.Contains(problem.Cause, fault.says) || !strings.Contains(problem.Remedy, fault.tip) {
				t.Errorf("%d, %q: %+v", n, err, problem)
			}
			for _, secret := range []string{"hunter2", base64.StdEncoding.EncodeToString([]byte("exporter:hunter2"))} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("%q shows %s", err, secret)
				}
			}
			if err := s.CheckServers(t.Context()); name != "incompatible" && condition.ProblemOf(err, "").Cause == "" {
				t.Errorf("a check finds %v", err)
			}
			r.ClearInterceptors()
			r.Intercept(func(w http.ResponseWriter, request *http.Request) bool { // which the fake has not
				asked := strings.HasSuffix(request.URL.Path, "/schemas/types")
				if asked {
					_, _ = io.WriteString(w, `["AVRO","JSON"]`)
				}
				return asked
			})
			s.schemas.timeout = patient
			mustPublish(t, s, lane, changes)
			wantSchemas(t, brokers, r, topicA, changes)
			if err := s.CheckServers(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestARegistryThatIsNotReachedIsNamed in the words of all connections.
func TestARegistryThatIsNotReachedIsNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	gone := srfake.New()
	gone.Close()
	secure := httptest.NewUnstartedServer(startFakeRegistry(t).Handler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for name, to := range map[string]struct {
		registry Registry
		code     condition.Code
		says     string
	}{
		"refused":    {Registry{URL: gone.URL()}, condition.SinkUnreachable, "connection refused"},
		"untrusted":  {Registry{URL: secure.URL}, condition.SinkCertificate, "not trusted"},
		"no files":   {Registry{URL: secure.URL, TLS: credentials.TLS{CA: "/nowhere.pem"}}, condition.SinkUnreachable, "kafka.registry.tls.ca"},
		"no secrets": {Registry{URL: gone.URL(), Username: "x", Password: credentials.InFile("/nowhere")}, condition.SinkUnauthorized, "kafka.registry.password"},
	} {
		s := openSinkWith(t, Config{Brokers: brokers, Topic: topicA, Registry: to.registry}, format.DebeziumJSONSchema, slog.New(slog.DiscardHandler))
		_, err := s.Publish(t.Context(), laneName(topicA, 0, 1), pods("a", 1, 2))
		if p := condition.ProblemOf(err, ""); p.Code != to.code || !strings.Contains(p.Cause, to.says) || p.Remedy == "" && to.says[0] != 'k' {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestARestartNeedsNoRegistry: the IDs are in the state of the sink, for the same registry and schemas only, and those that
// the registry gives now are preferred.
func TestARestartNeedsNoRegistry(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	away, r := startFakeRegistry(t), startFakeRegistry(t)
	open := func(url string, f format.Format) *Sink {
		s := openSinkWith(t, Config{Brokers: brokers, Topic: topicA, Registry: Registry{URL: url}}, f, slog.New(slog.DiscardHandler))
		s.schemas.patience = s.schemas.timeout
		return s
	}
	k, lane := &storedState{}, laneName(topicA, 0, 1)
	publish := func(s *Sink, version int) error {
		restoreState(t, s, k, uint64(version-1))
		_, err := publishOnward(t.Context(), s, lane, pods("a", version, version+1))
		k.state = s.State(0)
		return err
	}
	first := open(r.URL(), format.DebeziumAvro)
	if err := publish(first, 1); err != nil {
		t.Fatal(err)
	}
	closeSink(t, first)
	r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	known := k.state
	second := open(r.URL(), format.DebeziumAvro)
	if err := publish(second, 2); err != nil {
		t.Fatalf("without the registry: %v", err)
	}
	closeSink(t, second)
	wantSchemas(t, brokers, r, topicA, pods("a", 1, 3))

	k.state = known
	away.Intercept(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	if err := publish(open(away.URL(), format.DebeziumAvro), 3); err == nil {
		t.Error("IDs of another registry are used")
	}
	k.state = known
	r.Reset()
	r.ClearInterceptors()
	r.SeedSchema("other", 1, 7, sr.Schema{Schema: `"string"`})
	if err := publish(open(r.URL(), format.DebeziumAvro), 3); err != nil {
		t.Fatal(err)
	}
	records := readTopics(t, brokers, topicA)
	if id, _ := r.GetSchema(topicA+"-value", 1); len(records) != 3 || id.ID <= 7 || !bytes.HasPrefix(records[2].Value, startOf(id.ID)) {
		t.Errorf("%d records, the last one %q, and the registry has %d", len(records), records[len(records)-1].Value[:5], id.ID)
	}
}
