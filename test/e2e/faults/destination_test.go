package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// plainKafka is a sink at the listener of a broker that lets everybody in.
func (c *fixture) plainKafka(b *kafka.Broker, keys mapping) mapping {
	sink := mapping{"brokers": b.Brokers(), "topic": c.name + ".{resource}"}
	for k, v := range keys {
		sink[k] = v
	}
	return sink
}

// knownKafka is a sink at the listener that asks for the password, which is read from a file.
func (c *fixture) knownKafka(passwordFile string) mapping {
	return mapping{
		"brokers": []string{c.kafka.SecureAddress()}, "topic": c.name + ".{resource}",
		"tls":  mapping{"enabled": true, "ca": filepath.Join(c.dir, "ca.pem")},
		"sasl": mapping{"mechanism": "plain", "username": user, "password": mapping{"file": passwordFile}},
	}
}

var createTopics = mapping{"createTopics": mapping{"enabled": true, "partitions": 1}}

// ownKafka is a broker of this fixture alone.
func (c *fixture) ownKafka() *kafka.Broker {
	c.t.Helper()
	b, err := kafka.Start(c.t.Context(), kafka.Options{Dir: c.t.TempDir()})
	c.must(err)
	c.t.Cleanup(func() { check(c.t, b.Kill()) })
	return b
}

func (c *fixture) kafkaDown() func() {
	b := c.ownKafka()
	c.sink("kafka", c.plainKafka(b, createTopics))
	c.start()
	c.must(b.Kill())
	c.create(workload.ConfigMaps, "meanwhile")
	return func() { c.must(b.Restart(c.t.Context())) }
}

func (c *fixture) wrongPassword() func() {
	file := c.write("password", wrongPassword)
	c.topic("configmaps")
	c.sink("kafka", c.knownKafka(file))
	c.launch()
	return func() { c.write("password", password) }
}

func (c *fixture) noTopic() func() {
	c.sink("kafka", c.plainKafka(c.kafka, nil))
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return func() { c.topic("configmaps") }
}

func (c *fixture) topicMissing() func() {
	c.watch("configmaps", "secrets")
	c.topic("configmaps")
	c.sink("kafka", c.plainKafka(c.kafka, nil))
	c.start()
	c.create(workload.ConfigMaps, "arrives")
	c.create(secrets, "waits")
	return func() { c.topic("secrets") }
}

func (c *fixture) topicForbidden() func() {
	c.watch("configmaps", "secrets")
	c.topic("configmaps")
	c.topic("secrets")
	c.sink("kafka", c.knownKafka(filepath.Join(c.dir, "password")))
	c.start()
	deny := kmsg.NewCreateACLsRequestCreation()
	deny.ResourceType, deny.ResourceName, deny.ResourcePatternType = kmsg.ACLResourceTypeTopic, c.name+".secrets", kmsg.ACLResourcePatternTypeLiteral
	deny.Principal, deny.Host = "User:"+user, "*"
	deny.Operation, deny.PermissionType = kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeDeny
	created, err := kmsg.NewPtrCreateACLsRequest(), error(nil)
	created.Creations = append(created.Creations, deny)
	c.asKafkaAdmin(func(ctx context.Context, client *kgo.Client) {
		var answer *kmsg.CreateACLsResponse
		answer, err = created.RequestWith(ctx, client)
		c.must(err)
		c.must(kerr.ErrorForCode(answer.Results[0].ErrorCode))
	})
	c.create(workload.ConfigMaps, "arrives")
	waiting := 0
	c.await("a refusal", func() string { // the broker goes by the rule later than it answers
		if strings.Contains(c.page("/readyz?verbose"), "no right to write") {
			return ""
		}
		c.create(secrets, fmt.Sprint("waits-", waiting))
		waiting++
		return fmt.Sprint("none of ", waiting, " Secrets is refused")
	})
	return func() {
		filter := kmsg.NewDeleteACLsRequestFilter()
		filter.ResourceType, filter.ResourceName, filter.ResourcePatternType = deny.ResourceType, &deny.ResourceName, deny.ResourcePatternType
		filter.Operation, filter.PermissionType = deny.Operation, deny.PermissionType
		deleted := kmsg.NewPtrDeleteACLsRequest()
		deleted.Filters = append(deleted.Filters, filter)
		c.asKafkaAdmin(func(ctx context.Context, client *kgo.Client) {
			_, err := deleted.RequestWith(ctx, client)
			c.must(err)
		})
	}
}

func (c *fixture) oversize() func() {
	c.topic("configmaps", "max.message.bytes", "4000")
	c.sink("kafka", c.plainKafka(c.kafka, mapping{"checkTopics": "off"}), mapping{"onOversize": "deadLetter"})
	c.start()
	c.create(workload.ConfigMaps, "fits")
	c.create(noise(40_000), "too-large")
	return nil
}

// topic creates a topic for a resource, with settings by turns name and value.
func (c *fixture) topic(resource string, settings ...string) {
	c.t.Helper()
	c.createTopic(c.name+"."+resource, 1, settings...)
}

// createTopic creates a topic, with settings by turns name and value.
func (c *fixture) createTopic(name string, partitions int, settings ...string) {
	c.t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), 1
	for i := 0; i < len(settings); i += 2 {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = settings[i], &settings[i+1]
		topic.Configs = append(topic.Configs, config)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	c.asKafkaAdmin(func(ctx context.Context, client *kgo.Client) {
		answer, err := request.RequestWith(ctx, client)
		c.must(err)
		c.must(kerr.ErrorForCode(answer.Topics[0].ErrorCode))
	})
}

func (c *fixture) asKafkaAdmin(do func(ctx context.Context, client *kgo.Client)) {
	c.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.kafka.Brokers()...))
	c.must(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), namedWithin)
	defer cancel()
	do(ctx, client)
}

// ownNATS is a server of this fixture alone.
func (c *fixture) ownNATS(config string) *natsserver.Server {
	c.t.Helper()
	n, err := natsserver.Start(c.t.Context(), natsserver.Options{Dir: c.t.TempDir(), Config: config})
	c.must(err)
	c.t.Cleanup(func() { check(c.t, n.Kill()) })
	return n
}

// toNATS is a sink with the fixture's stream.
func (c *fixture) toNATS(url string, keys mapping) mapping {
	sink := mapping{"url": url, "stream": c.name, "subject": c.name + ".{resource}.{namespace}.{name}"}
	for k, v := range keys {
		sink[k] = v
	}
	return sink
}

var createStream = mapping{"create": mapping{"enabled": true}}

func (c *fixture) natsDown() func() {
	n := c.ownNATS("")
	c.sink("nats", c.toNATS(n.URL(), createStream))
	c.start()
	c.must(n.Kill())
	return func() { c.must(n.Restart(c.t.Context())) }
}

// stream creates or changes the fixture's stream at the shared server.
func (c *fixture) stream(config jetstream.StreamConfig) {
	c.t.Helper()
	js, hangUp, err := bus.Operate(c.nats.URL())
	c.must(err)
	defer hangUp()
	config.Name, config.Subjects = c.name, append(config.Subjects, c.name+".>")
	_, err = js.CreateOrUpdateStream(c.t.Context(), config)
	c.must(err)
}

func (c *fixture) streamMissing() func() {
	c.sink("nats", c.toNATS(c.nats.URL(), nil))
	c.launch()
	return func() { c.stream(jetstream.StreamConfig{}) }
}

func (c *fixture) streamFull() func() {
	full := jetstream.StreamConfig{MaxMsgs: 3, Discard: jetstream.DiscardNew}
	c.stream(full)
	c.sink("nats", c.toNATS(c.nats.URL(), nil))
	c.start()
	for _, name := range []string{"one", "two", "three", "four"} {
		c.create(workload.ConfigMaps, name)
	}
	return func() {
		full.MaxMsgs = 1000
		c.stream(full)
	}
}

// streamForgets edits the stream while the exporter has nothing to deliver.
func (c *fixture) streamForgets() func() {
	c.stream(jetstream.StreamConfig{})
	c.sink("nats", c.toNATS(c.nats.URL(), nil))
	c.start()
	c.stream(jetstream.StreamConfig{MaxMsgs: 1000, Discard: jetstream.DiscardOld})
	return func() { c.stream(jetstream.StreamConfig{}) }
}

// expired has a server with a certificate that expired an hour ago, until it gets another one.
func (c *fixture) expired() func() {
	certify := func(to time.Time) {
		cert, key := c.authority.IssueWithin(c.t, "nats", to.Add(-2*time.Hour), to)
		c.write("server.pem", string(cert))
		c.write("server.key", string(key))
	}
	certify(time.Now().Add(-time.Hour))
	files := map[string]string{"DIR": c.settings.Dir}
	n := c.ownNATS(os.Expand("tls {\n  cert_file: \"${DIR}/server.pem\"\n  key_file: \"${DIR}/server.key\"\n}\n", func(name string) string { return files[name] }))
	c.sink("nats", c.toNATS(strings.Replace(n.URL(), "nats://", "tls://", 1), mapping{
		"create": createStream["create"], "tls": mapping{"ca": filepath.Join(c.dir, "ca.pem")},
	}))
	c.launch()
	return func() {
		certify(time.Now().Add(time.Hour))
		c.must(n.Restart(c.t.Context()))
	}
}

// clientRefused has a server that asks for a client certificate, which is of another authority until it is replaced.
func (c *fixture) clientRefused() func() {
	c.authority.IssueTo(c.t, c.settings.Dir)
	file := func(name string) string { return filepath.Join(c.settings.Dir, name) }
	n := c.ownNATS(fmt.Sprintf("tls {\n  cert_file: %q\n  key_file: %q\n  ca_file: %q\n  verify: true\n}\n", file("cert.pem"), file("key.pem"), file("ca.pem")))
	certify := func(by *certificates.Authority) {
		cert, key := by.Issue(c.t)
		c.write("client.key", string(key))
		c.write("client.pem", string(cert))
	}
	certify(certificates.New(c.t))
	c.sink("nats", c.toNATS(strings.Replace(n.URL(), "nats://", "tls://", 1), mapping{
		"create": createStream["create"], "tls": mapping{"ca": file("ca.pem"), "cert": file("client.pem"), "key": file("client.key")},
	}))
	c.launch()
	return func() { certify(c.authority) }
}

// otherName expects a name that the broker's certificate does not have.
func (c *fixture) otherName() func() {
	c.topic("configmaps")
	sink := c.knownKafka(filepath.Join(c.dir, "password"))
	sink["tls"] = mapping{"enabled": true, "ca": filepath.Join(c.dir, "ca.pem"), "serverName": "other.example"}
	c.sink("kafka", sink)
	c.launch()
	return nil
}

// unknownAuthority has a receiver with a certificate of an authority that the sink gets to know later.
func (c *fixture) unknownAuthority() func() {
	server := c.receiver(func(string) int { return http.StatusNoContent })
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	cert, key := c.authority.Issue(c.t)
	pair, err := tls.X509KeyPair(cert, key)
	c.must(err)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	ca := c.write("known.pem", string(certificates.New(c.t).PEM))
	c.sink("webhook", mapping{"url": server.URL, "tls": mapping{"ca": ca}}, cloudEvents)
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return func() { c.write("known.pem", string(c.authority.PEM)) }
}

// receiver is a webhook's other end. what answers a request with a status.
func (c *fixture) receiver(what func(body string) int) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.WriteHeader(what(string(body)))
	}))
	c.t.Cleanup(server.Close)
	return server
}

var cloudEvents = mapping{"format": "cloudevents"}

// notYetValid is the view of an exporter with a clock an hour behind: a new certificate is valid only from the future on.
func (c *fixture) notYetValid() func() {
	valid := func(from time.Time) *tls.Certificate {
		cert, key := c.authority.IssueWithin(c.t, "receiver", from, from.Add(2*time.Hour))
		pair, err := tls.X509KeyPair(cert, key)
		c.must(err)
		return &pair
	}
	var shown atomic.Pointer[tls.Certificate]
	shown.Store(valid(time.Now().Add(time.Hour)))
	server := c.receiver(func(string) int { return http.StatusNoContent })
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*shown.Load()}}, nil
	}}
	server.StartTLS()
	c.sink("webhook", mapping{"url": server.URL, "tls": mapping{"ca": filepath.Join(c.dir, "ca.pem")}}, cloudEvents)
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return func() { shown.Store(valid(time.Now().Add(-time.Hour))) }
}

// rejectsAll has a receiver that rejects more changes than an unproven destination loses to dead letters.
func (c *fixture) rejectsAll() func() {
	server := c.receiver(func(string) int { return http.StatusBadRequest })
	server.Start()
	c.sink("webhook", mapping{"url": server.URL}, cloudEvents)
	c.start()
	for i := range 25 {
		c.create(workload.ConfigMaps, fmt.Sprintf("rejected-%d", i))
	}
	return nil
}

// switchedReceiver is a receiver at an address of its own, which stays; what answers is exchanged.
type switchedReceiver struct {
	address string
	server  *http.Server
	c       *fixture
}

func (c *fixture) switchedReceiver() *switchedReceiver {
	c.t.Helper()
	free, err := ports.Free(1)
	c.must(err)
	r := &switchedReceiver{address: ports.Address(free[0]), c: c}
	c.t.Cleanup(r.close)
	return r
}

// close lets connections be refused.
func (r *switchedReceiver) close() {
	if r.server != nil {
		check(r.c.t, r.server.Close())
		r.server = nil
	}
}

// serve answers from now on.
func (r *switchedReceiver) serve(answer http.HandlerFunc) {
	r.c.t.Helper()
	r.close()
	listener, err := net.Listen("tcp", r.address)
	r.c.must(err)
	r.server = &http.Server{Handler: answer, ReadHeaderTimeout: namedWithin}
	go func(s *http.Server) { _ = s.Serve(listener) }(r.server)
}

func accept(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func busy(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// hang answers nothing until the connection ends.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// toWebhook starts an exporter with a webhook and objects for many of its lanes, as soon as the receiver answers otherwise.
func (c *fixture) toWebhook(then func(r *switchedReceiver)) (heal func()) {
	r := c.switchedReceiver()
	r.serve(accept)
	c.sink("webhook", mapping{"url": "http://" + r.address, "timeout": "2s"}, cloudEvents)
	c.start()
	then(r)
	for i := range 20 {
		c.create(workload.ConfigMaps, fmt.Sprint("waits-", i))
	}
	return func() { r.serve(accept) }
}

func (c *fixture) webhookClosed() func() { return c.toWebhook((*switchedReceiver).close) }

func (c *fixture) webhookHangs() func() {
	return c.toWebhook(func(r *switchedReceiver) { r.serve(hang) })
}

func (c *fixture) webhookBusy() func() {
	return c.toWebhook(func(r *switchedReceiver) { r.serve(busy) })
}

// jetStreamSilent has a server that stands still.
func (c *fixture) jetStreamSilent() func() {
	n := c.ownNATS("")
	c.sink("nats", c.toNATS(n.URL(), createStream))
	c.start()
	c.must(n.Process().Freeze())
	for i := range 5 {
		c.create(workload.ConfigMaps, fmt.Sprint("waits-", i))
	}
	return func() { c.must(n.Process().Resume()) }
}

// lettersFull has a receiver that refuses what is large for ever and takes all else.
func (c *fixture) lettersFull() func() {
	server := c.receiver(func(body string) int {
		if len(body) > 100_000 {
			return http.StatusBadRequest
		}
		return http.StatusNoContent
	})
	server.Start()
	c.settings.Journal = mapping{"maxDeadLetters": "1Mi"}
	c.sink("webhook", mapping{"url": server.URL}, cloudEvents)
	c.start()
	for _, name := range []string{"one", "two", "three", "four"} {
		c.create(workload.ConfigMaps, "small-"+name)
		c.create(noise(500_000), "large-"+name)
	}
	return nil
}

func (c *fixture) lettersHeld() func() {
	b := c.ownKafka()
	c.stream(jetstream.StreamConfig{MaxMsgSize: 4000})
	c.sink("kafka", c.plainKafka(b, createTopics))
	c.sink("nats", c.toNATS(c.nats.URL(), nil), mapping{"onOversize": "deadLetter", "deadLetters": mapping{"sink": "kafka", "topic": c.name + ".dead"}})
	c.start()
	c.must(b.Kill())
	c.create(noise(40_000), "too-large")
	return nil
}

func (c *fixture) plainToTLS() func() {
	sink := c.knownKafka(filepath.Join(c.dir, "password"))
	delete(sink, "tls")
	sink["sasl"].(mapping)["allowCleartextCredentials"] = true
	c.sink("kafka", sink)
	c.launch()
	return nil
}

func (c *fixture) tlsToPlain() func() {
	sink := c.knownKafka(filepath.Join(c.dir, "password"))
	sink["brokers"] = c.kafka.Brokers()
	c.sink("kafka", sink)
	c.launch()
	return nil
}

func (c *fixture) unknownName() func() {
	c.sink("kafka", mapping{"brokers": []string{"kafka.nowhere.invalid:9092"}, "topic": c.name})
	c.launch()
	return nil
}

// wrongAdvertised has a broker that names an address to its clients where nothing listens any more.
func (c *fixture) wrongAdvertised() func() {
	free, err := ports.Free(1)
	c.must(err)
	p, err := proxy.Start(ports.Address(free[0]))
	c.must(err)
	b, err := kafka.Start(c.t.Context(), kafka.Options{Dir: c.t.TempDir(), Port: free[0], Properties: map[string]string{
		"advertised.listeners": "PLAINTEXT://" + p.Address(),
	}})
	c.must(err)
	c.t.Cleanup(func() { check(c.t, b.Kill()) })
	c.must(p.Close())
	c.sink("kafka", c.plainKafka(b, createTopics))
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return nil
}

// oneRightMissing has an account that may publish anything but objects of one kind, and ask JetStream.
func (c *fixture) oneRightMissing() func() {
	c.watch("configmaps", "secrets")
	n := c.ownNATS(fmt.Sprintf(`authorization { users: [ {user: u, password: p, permissions: {publish: {deny: [%q]}}} ] }`, c.name+".secrets.>"))
	c.sink("nats", c.toNATS(strings.Replace(n.URL(), "nats://", "nats://u:p@", 1), mapping{"create": createStream["create"], "allowCleartextCredentials": true}))
	c.start()
	c.create(workload.ConfigMaps, "arrives")
	c.create(secrets, "waits")
	return nil
}

func (c *fixture) noRight() func() {
	n := c.ownNATS(fmt.Sprintf(`authorization { users: [ {user: u, password: p, permissions: {publish: {deny: [%q]}}} ] }`, c.name+".>"))
	c.sink("nats", c.toNATS(strings.Replace(n.URL(), "nats://", "nats://u:p@", 1), mapping{"create": createStream["create"], "allowCleartextCredentials": true}))
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return nil
}

// jetStreamOff has an account without JetStream.
func (c *fixture) jetStreamOff() func() {
	n := c.ownNATS("accounts {\n  PLAIN { users: [ {user: u, password: p} ] }\n  JS { jetstream: enabled, users: [ {user: j, password: p} ] }\n}\n")
	c.sink("nats", c.toNATS(strings.Replace(n.URL(), "nats://", "nats://u:p@", 1), mapping{"create": createStream["create"], "allowCleartextCredentials": true}))
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return nil
}

// lameDuck has a server that is being taken out of service.
func (c *fixture) lameDuck() func() {
	n := c.ownNATS("")
	c.sink("nats", c.toNATS(n.URL(), createStream))
	c.start()
	c.must(syscall.Kill(n.Process().Pid(), syscall.SIGUSR2))
	c.create(workload.ConfigMaps, "waits")
	return nil // the server ends by itself
}

func (c *fixture) webhookUnauthorized() func() {
	return c.toWebhook(func(r *switchedReceiver) { r.serve(answers(http.StatusUnauthorized)) })
}

func (c *fixture) webhookNotFound() func() {
	return c.toWebhook(func(r *switchedReceiver) { r.serve(answers(http.StatusNotFound)) })
}

func (c *fixture) webhookLater() func() {
	c.toWebhook(func(r *switchedReceiver) {
		r.serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(http.StatusTooManyRequests)
		})
	})
	return nil // it is not asked before the time is over
}

func answers(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func (c *fixture) sinkPaused() func() {
	c.start()
	c.signal("pause", "--sink", "file")
	c.create(workload.ConfigMaps, "waits")
	return func() { c.signal("resume", "--sink", "file") }
}

func (c *fixture) signal(args ...string) {
	c.t.Helper()
	if code, out := c.command(append([]string{"signal", args[0], "--config", c.exporter.Config()}, args[1:]...)...); code != 0 {
		c.t.Fatalf("signal %v: exit %d\n%s", args, code, out)
	}
}

// webhookNeverAnswers accepts connections, and nothing comes through them.
func (c *fixture) webhookNeverAnswers() func() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	c.t.Cleanup(func() { _ = listener.Close() })
	c.sink("webhook", mapping{"url": "http://" + listener.Addr().String(), "timeout": "2s"}, cloudEvents)
	c.create(workload.ConfigMaps, "waits")
	c.launch()
	return nil
}
