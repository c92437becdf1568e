package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
	"github.com/kubecdc/kubecdc/test/bench/verify"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/wire"
)

// Bars of a replicated state.
const (
	replicatedCPUBar   = 1.08  // CPU per change with a state, to that without
	replicatedBytesBar = 160.0 // of the state on the wire, for each change
)

// replicatedRounds is how often each way is measured, one after the other in turn.
const replicatedRounds = 3

// replicated is what a replicated state costs, in each of the buses that may keep one.
type replicated struct {
	Buses []replicatedIn `json:"buses"`
}

type replicatedIn struct {
	Bus     string    `json:"bus"`
	Without []float64 `json:"cpuMicrosPerChangeWithout"` // of each round
	With    []float64 `json:"cpuMicrosPerChange"`
	Ratio   float64   `json:"ratio"` // of the least of each: what else the machine does only adds
	Bytes   float64   `json:"stateBytesPerChange"`
}

// measureReplicated runs the exporter with and without a state, in turn, and once with a state in a bus that takes nothing
// else.
func measureReplicated(ctx context.Context, o options, c *corpus.Corpus) (*replicated, error) {
	r := &replicated{}
	for _, bus := range []string{"kafka", "nats"} {
		in := replicatedIn{Bus: bus}
		for round := range replicatedRounds {
			for _, with := range []bool{false, true} {
				name, state := fmt.Sprintf("%s-alone-%d", bus, round+1), ""
				if with {
					name, state = fmt.Sprintf("%s-state-%d", bus, round+1), "state: {sink: main}\n"
				}
				m, err := measureOn(ctx, o, c, bus, name, state)
				if err != nil {
					return nil, err
				}
				if with {
					in.With = append(in.With, m.CPUMicros)
				} else {
					in.Without = append(in.Without, m.CPUMicros)
				}
			}
		}
		in.Ratio = slices.Min(in.With) / slices.Min(in.Without)
		bytes, err := stateBytes(ctx, o, c, bus)
		if err != nil {
			return nil, err
		}
		in.Bytes = float64(bytes) / float64(len(c.Entries()))
		r.Buses = append(r.Buses, in)
	}
	return r, nil
}

// stateBytes runs the exporter with a state in a bus of its own and returns how many bytes passed between the two.
func stateBytes(ctx context.Context, o options, c *corpus.Corpus, bus string) (carried int64, err error) {
	counted, sink, stop, err := countedBus(ctx, o, bus)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	rest := sink + "routes: [{select: [\"*\"], to: [{sink: main}]}]\nstate: {sink: state}\n"
	if _, err := measureOn(ctx, o, c, "kafka", bus+"-bytes", rest); err != nil {
		return 0, err
	}
	return counted(), nil
}

// countedBus starts a bus for a state alone. It returns a counter of the bytes to and from it, and the sink's entry
// in the configuration.
func countedBus(ctx context.Context, o options, bus string) (counted func() int64, sink string, stop func() error, err error) {
	if bus == "kafka" {
		var carried atomic.Int64
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address)
			return &countingListener{l, &carried}, err
		}))
		if err != nil {
			return nil, "", nil, err
		}
		sink := fmt.Sprintf("  - {name: state, kafka: {brokers: [%q], topic: unused}}\n", strings.Join(cluster.ListenAddrs(), ","))
		return carried.Load, sink, func() error { cluster.Close(); return nil }, nil
	}
	server, err := natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(o.dir, "state-nats")})
	if err != nil {
		return nil, "", nil, err
	}
	w, err := wire.New(0)
	if err != nil {
		return nil, "", nil, errors.Join(err, server.Kill())
	}
	served := make(chan error, 1)
	go func() { served <- w.Serve(strings.TrimPrefix(server.URL(), "nats://")) }()
	return w.Carried, "  - {name: state, nats: " + natsSink("nats://"+w.Address(), "UNUSED", "unused") + "}\n",
		func() error { w.Close(); return errors.Join(<-served, server.Kill()) }, nil
}

// natsSink is the configuration of a NATS sink that makes its stream.
func natsSink(url, stream, prefix string) string {
	return fmt.Sprintf("{url: %q, stream: %s, subject: %q, create: {enabled: true}}", url, stream, prefix+".{group}.{resource}.{namespace}.{name}")
}

// countingListener counts what passes through its connections.
type countingListener struct {
	net.Listener
	carried *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countingConn{c, l.carried}, err
}

type countingConn struct {
	net.Conn
	carried *atomic.Int64
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.carried.Add(int64(n))
	return n, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.carried.Add(int64(n))
	return n, err
}

// measureOn runs the exporter with a sink called main in a bus. rest goes on in the configuration behind that sink.
func measureOn(ctx context.Context, o options, c *corpus.Corpus, bus, name, rest string) (m measurement, err error) {
	fmt.Fprintf(os.Stderr, "measuring %s\n", name)
	s := system{name: name, title: name, decode: verify.Native}
	var count func(context.Context) (int64, error)
	destination := func(at stage) string {
		return fmt.Sprintf(`kafka: {brokers: [%q], topic: "k8s.{group}.{resource}"}`, at.broker)
	}
	if bus == "nats" {
		server, err := natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(o.dir, name, "nats")})
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, server.Kill()) }()
		nc, err := nats.Connect(server.URL())
		if err != nil {
			return m, err
		}
		defer nc.Close()
		destination = func(stage) string { return "nats: " + natsSink(server.URL(), "BENCH", "bench") }
		count = func(ctx context.Context) (int64, error) { return messagesIn(ctx, nc, "BENCH") }
	}
	s.command = func(at stage) (string, []string, error) {
		path := filepath.Join(at.dir, "exporter.yaml")
		text := fmt.Sprintf("cluster: {kubeconfig: %q}\nresources:\n  - {select: [pods, events]}\njournal: {dir: %q, sync: always}\n"+
			"admin: {listen: \"127.0.0.1:0\"}\nsinks:\n  - {name: main, %s}\n%s", at.kubeconfig, filepath.Join(at.dir, "journal"), destination(at), rest)
		return o.exporter, []string{"run", "--config", path}, os.WriteFile(path, []byte(text), 0o600)
	}
	if m, err = measureCounting(ctx, o, c, s, count); err == nil && count == nil && !m.Delivered.Complete() {
		err = fmt.Errorf("what arrived is not what happened: %+v", m.Delivered)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return m, err
}

// messagesIn is how many messages a stream holds; none where there is no stream yet.
func messagesIn(ctx context.Context, nc *nats.Conn, stream string) (int64, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int64(s.CachedInfo().State.Msgs), nil
}

func (r *replicated) missed() []string {
	var missed []string
	for _, b := range r.Buses {
		if b.Ratio > replicatedCPUBar {
			missed = append(missed, fmt.Sprintf("CPU per change with a state in %s: %.3f of that without, at most %.3f", b.Bus, b.Ratio, replicatedCPUBar))
		}
		if b.Bytes > replicatedBytesBar {
			missed = append(missed, fmt.Sprintf("bytes of the state in %s: %.0f a change, at most %.0f", b.Bus, b.Bytes, replicatedBytesBar))
		}
	}
	return missed
}

func (r *replicated) print(w io.Writer) {
	fmt.Fprintf(w, "\nwith a replicated state : without, CPU per change, the least of %d rounds\n", replicatedRounds)
	for _, b := range r.Buses {
		fmt.Fprintf(w, "  %-5s %.3f (bar %.3f)   %.1f µs of %.1f : %.1f of %.1f   %.0f bytes on the wire a change (bar %.0f)\n", b.Bus, b.Ratio, replicatedCPUBar,
			slices.Min(b.With), b.With, slices.Min(b.Without), b.Without, b.Bytes, replicatedBytesBar)
	}
}
