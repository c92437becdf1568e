package loki

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// Server is a started server.
type Server struct {
	program string
	dir     string
	port    int
	process *process.Process
}

// Start starts a server with its configuration, data and log below a directory, which has to be there. ctx bounds the start,
// and building the server if it is not in the cache; the server runs until Stop or the end of this process.
func Start(ctx context.Context, dir string) (*Server, error) {
	program, err := build.Loki(ctx)
	if err != nil {
		return nil, err
	}
	var s *Server
	err = ports.Try(2, func(free []int) error {
		s = &Server{program: program, dir: dir, port: free[0]}
		if err := s.configure(free[1]); err != nil {
			return err
		}
		return s.Run(ctx)
	})
	return s, err
}

func (s *Server) configure(grpc int) error {
	settings := fmt.Sprintf(`auth_enabled: false
analytics: {reporting_enabled: false}
server:
  http_listen_address: 127.0.0.1
  http_listen_port: %d
  grpc_listen_address: 127.0.0.1
  grpc_listen_port: %d
  log_level: warn
common:
  instance_addr: 127.0.0.1
  path_prefix: %s
  replication_factor: 1
  ring: {kvstore: {store: inmemory}}
  storage: {filesystem: {chunks_directory: %s, rules_directory: %s}}
ingester: {lifecycler: {min_ready_duration: 0s}}
schema_config:
  configs:
    - {from: 2024-01-01, store: tsdb, object_store: filesystem, schema: v13, index: {prefix: index_, period: 24h}}
`, s.port, grpc, s.dir, filepath.Join(s.dir, "chunks"), filepath.Join(s.dir, "rules"))
	return os.WriteFile(s.configuration(), []byte(settings), 0o644)
}

func (s *Server) configuration() string { return filepath.Join(s.dir, "loki.yaml") }

// Run starts the server again after Stop, with what it has stored. ctx bounds the start.
func (s *Server) Run(ctx context.Context) (err error) {
	s.process, err = process.Start(ctx, process.Options{
		Name: "loki", Path: s.program, Args: []string{"-config.file=" + s.configuration()}, Dir: s.dir,
		Log: filepath.Join(s.dir, "loki.log"), Ready: s.answers,
	})
	return err
}

func (s *Server) answers(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/ready", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("loki answers %s", response.Status)
	}
	return nil
}

// URL is where it listens.
func (s *Server) URL() string { return "http://" + ports.Address(s.port) }

// Stop ends the server. Its data stay.
func (s *Server) Stop() error { return s.process.Stop() }
