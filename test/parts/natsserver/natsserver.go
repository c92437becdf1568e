package natsserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// Options configure what to start. Only Dir is required.
type Options struct {
	// Dir takes the configuration, the store and the log. A directory of an earlier server brings its streams back.
	Dir string
	// Name is the server's name; empty means "nats". It is unique in a cluster.
	Name string
	// Port is the client port; 0 takes a free one.
	Port int
	// Config is appended to the configuration file: authorization, limits, accounts. With authorization, put the
	// credentials into the client; URL does not hold them.
	Config string
	// Silent means that Config lets the server wait for its clients to speak first, with handshake_first.
	Silent bool
	// Cluster makes the server one of a cluster; StartCluster fills it in.
	Cluster *Cluster
}

// Cluster is a server's place in a cluster.
type Cluster struct {
	Name   string
	Port   int   // where this server takes routes
	Routes []int // addresses of the other servers, which do not discover each other
}

// Server is a started NATS server. Its methods may be called concurrently.
type Server struct {
	name    string
	port    int
	monitor int
	service *process.Service
}

// Start starts a server and returns when it takes clients; a server that stands alone is then also ready for
// JetStream, while one of a cluster needs the others for that, see Healthy. ctx bounds the start, and the build of the
// program if it is not there yet; the server runs until Stop, Kill or the end of this process. After an error nothing
// runs.
func Start(ctx context.Context, options Options) (*Server, error) {
	program, err := build.NATSServer(ctx)
	if err != nil {
		return nil, err
	}
	if options.Dir, err = filepath.Abs(options.Dir); err != nil {
		return nil, err
	}
	if options.Name == "" {
		options.Name = "nats"
	}
	var started *Server
	err = ports.Try(2, func(free []int) error {
		s, err := prepare(program, options, free)
		if err != nil {
			return err
		}
		if err := s.service.Start(ctx); err != nil {
			return err
		}
		started = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("NATS server in %s: %w", options.Dir, err)
	}
	return started, nil
}

// prepare writes the configuration and describes the process.
func prepare(program string, options Options, free []int) (*Server, error) {
	s := &Server{name: options.Name, port: free[0], monitor: free[1]}
	if options.Port != 0 {
		s.port = options.Port
	}
	if err := os.MkdirAll(options.Dir, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(options.Dir, "nats.conf")
	if err := os.WriteFile(config, []byte(s.config(options)), 0o600); err != nil {
		return nil, err
	}
	ready := s.ready
	switch {
	case options.Cluster != nil:
		ready = s.greets
	case options.Silent:
		ready = s.Healthy
	}
	s.service = process.NewService(process.Options{
		Name:  options.Name,
		Path:  program,
		Args:  []string{"--config", config},
		Dir:   options.Dir,
		Log:   filepath.Join(options.Dir, "nats.log"),
		Ready: ready,
	})
	return s, nil
}

// ready means that clients are taken and JetStream has recovered its streams.
func (s *Server) ready(ctx context.Context) error {
	if err := s.greets(ctx); err != nil {
		return err
	}
	return s.Healthy(ctx)
}

// Name returns the server's name.
func (s *Server) Name() string { return s.name }

// URL returns the address for clients, as "nats://127.0.0.1:PORT". It stays the same over restarts.
func (s *Server) URL() string { return "nats://" + ports.Address(s.port) }

// MonitorURL returns the address of the server's HTTP monitoring, as "http://127.0.0.1:PORT".
func (s *Server) MonitorURL() string { return "http://" + ports.Address(s.monitor) }

// Stop ends the server in order. An error means that it had to be killed or had ended by itself; it is gone in either
// case. A server that does not run is no error.
func (s *Server) Stop() error { return s.service.Stop() }

// Kill ends the server by SIGKILL. A server that does not run is no error.
func (s *Server) Kill() error { return s.service.Kill() }

// Restart starts the server again on the same ports and store, after Stop or Kill, and returns when it takes clients
// as after Start. A server that runs is stopped first.
func (s *Server) Restart(ctx context.Context) error {
	return errors.Join(s.service.Stop(), s.service.Start(ctx))
}

// Process returns the running server, to read its usage; nil while it is stopped.
func (s *Server) Process() *process.Process { return s.service.Process() }
