package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// Options configure what to start. Only Dir is required.
type Options struct {
	// Dir takes the configuration, the data and the log. A directory of an earlier broker brings its topics back.
	Dir string
	// Port is the port for clients; 0 takes a free one.
	Port int
	// Properties are set in the broker's configuration and win over the defaults, such as "message.max.bytes".
	Properties map[string]string
	// Secure adds a listener with TLS, which asks for SASL where it has mechanisms.
	Secure *Secure
	// JVM replaces the arguments of the Java machine, which keep it small and quick to start, see smallJVM.
	JVM []string
}

// Secure describes a listener with TLS, and perhaps SASL, beside the plain one.
type Secure struct {
	// Certificate and Key are the broker's, as PEM; the key in PKCS #8. Clients are the authorities for client
	// certificates it takes, as PEM: it then asks for one.
	Certificate, Key, Clients string
	// Mechanisms are SASL mechanisms with the JAAS configuration of each, such as "PLAIN" with its users. OAUTHBEARER takes
	// unsigned tokens.
	Mechanisms map[string]string
}

// Broker is a started broker. Its methods may be called concurrently.
type Broker struct {
	id      int
	port    int
	secure  int // port of the listener with TLS; 0: there is none
	dir     string
	service *process.Service
}

// smallJVM are the usual arguments: little heap, the serial collector, and only the quick compiler, since brokers in tests
// live for seconds.
var smallJVM = []string{"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}

// Start starts a broker that stands alone and returns when it answers clients. ctx bounds the start, and fetching the
// broker's classes if they are not there yet; the broker runs until Stop, Kill or the end of this process. After an
// error nothing runs.
func Start(ctx context.Context, options Options) (*Broker, error) {
	brokers, err := start(ctx, options.Dir, 1, func(member) Options { return options })
	if err != nil {
		return nil, err
	}
	return brokers[0], nil
}

// member is a broker's place in a cluster.
type member struct {
	ID int // from 1
	// Dir is where its data goes.
	Dir string
}

// StartCluster starts n brokers that are one cluster, in directories "broker-1" and so on below dir, and returns when
// all of them answer clients. Topics get as many replicas as there are brokers, but three at most. properties are
// set in every broker's configuration. Otherwise it is as Start.
func StartCluster(ctx context.Context, dir string, n int, properties map[string]string) (Brokers, error) {
	return StartDiffering(ctx, dir, n, func(int) map[string]string { return properties })
}

// StartDiffering is StartCluster with other properties for each broker, by its node ID, from 1.
func StartDiffering(ctx context.Context, dir string, n int, properties func(id int) map[string]string) (Brokers, error) {
	return start(ctx, dir, n, func(m member) Options { return Options{Dir: m.Dir, Properties: properties(m.ID)} })
}

// start starts n brokers with the options that describe each.
func start(ctx context.Context, dir string, n int, describe func(member) Options) (Brokers, error) {
	java, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	if java.shared, err = java.archive(ctx); err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	var started Brokers
	err = ports.Try(3*n, func(free []int) error {
		brokers, err := prepare(ctx, java, dir, free, describe)
		if err != nil {
			return err
		}
		if err := brokers.start(ctx); err != nil {
			return errors.Join(err, brokers.Kill())
		}
		started = brokers
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("kafka in %s: %w", dir, err)
	}
	return started, nil
}

// prepare formats the storage of all brokers and describes their processes. The first third of the ports is for
// controllers, the last for listeners with TLS.
func prepare(ctx context.Context, java java, dir string, free []int, describe func(member) Options) (Brokers, error) {
	n := len(free) / 3
	controllers, clients, secure := free[:n], free[n:2*n], free[2*n:]
	var brokers Brokers
	for i := range n {
		m := member{ID: i + 1, Dir: filepath.Join(dir, fmt.Sprintf("broker-%d", i+1))}
		options := describe(m)
		if options.Port == 0 {
			options.Port = clients[i]
		}
		b, err := newBroker(ctx, java, m.ID, controllers, secure[i], options)
		if err != nil {
			return nil, err
		}
		brokers = append(brokers, b)
	}
	return brokers, nil
}

func newBroker(ctx context.Context, java java, id int, controllers []int, secure int, options Options) (*Broker, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	b := &Broker{id: id, port: options.Port, dir: dir}
	extra := options.Properties
	if options.Secure != nil {
		b.secure = secure
		extra = options.Secure.properties(b, controllers[id-1])
		maps.Copy(extra, options.Properties)
	}
	config := filepath.Join(dir, "server.properties")
	if err := os.WriteFile(config, []byte(b.properties(controllers, extra)), 0o644); err != nil {
		return nil, err
	}
	if err := java.format(ctx, dir, config); err != nil {
		return nil, err
	}
	jvm := options.JVM
	if jvm == nil {
		jvm = smallJVM
	}
	b.service = process.NewService(process.Options{
		Name:  fmt.Sprintf("kafka broker %d", id),
		Path:  java.path,
		Args:  java.arguments(jvm, "kafka.Kafka", config),
		Dir:   dir,
		Log:   filepath.Join(dir, "broker.log"),
		Ready: b.Answers,
	})
	return b, nil
}

// Address returns where clients reach the broker, as "127.0.0.1:PORT". It stays the same over restarts.
func (b *Broker) Address() string { return ports.Address(b.port) }

// SecureAddress returns where clients reach the listener with TLS.
func (b *Broker) SecureAddress() string { return ports.Address(b.secure) }

// Brokers returns the address as the list that clients take.
func (b *Broker) Brokers() []string { return []string{b.Address()} }

// ID returns the broker's node ID.
func (b *Broker) ID() int { return b.id }

// Stop ends the broker in order. An error means that it had to be killed or had ended by itself; it is gone in either
// case. A broker that does not run is no error.
func (b *Broker) Stop() error { return b.service.Stop() }

// Kill ends the broker by SIGKILL. A broker that does not run is no error.
func (b *Broker) Kill() error { return b.service.Kill() }

// Restart starts the broker again on the same ports and data, after Stop or Kill, and returns when it answers clients.
// In a cluster it can only do so when most of the brokers run. A broker that runs is stopped first.
func (b *Broker) Restart(ctx context.Context) error {
	return errors.Join(b.service.Stop(), b.service.Start(ctx))
}

// Process returns the running broker, to read its usage; nil while it is stopped.
func (b *Broker) Process() *process.Process { return b.service.Process() }

// java runs classes of Kafka.
type java struct {
	path      string // the program
	classPath string
	logging   string // the log4j2 configuration
	shared    string // the archive of loaded classes; "" is none
}

func findJava(ctx context.Context) (java, error) {
	path, err := exec.LookPath("java")
	if err != nil {
		return java{}, fmt.Errorf("%w; install Java 17 or later and put it on PATH", err)
	}
	jars, err := build.Kafka(ctx)
	if err != nil {
		return java{}, err
	}
	root, err := build.Root()
	if err != nil {
		return java{}, err
	}
	return java{
		path:      path,
		classPath: filepath.Join(jars, "*"),
		logging:   filepath.Join(root, "test", "kafka", "log4j2.xml"),
	}, nil
}

func (j java) arguments(jvm []string, class string, args ...string) []string {
	all := append([]string{}, jvm...)
	if j.shared != "" {
		all = append(all, "-XX:SharedArchiveFile="+j.shared)
	}
	all = append(all, "-cp", j.classPath, "-Dlog4j2.configurationFile="+j.logging, class)
	return append(all, args...)
}
