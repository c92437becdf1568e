package loki

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// Server is a started server.
type Server struct {
	port    int
	service *process.Service
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
		s = &Server{port: free[0]}
		configuration := filepath.Join(dir, "loki.yaml")
		if err := os.WriteFile(configuration, settings(dir, free[0], free[1]), 0o644); err != nil {
			return err
		}
		s.service = process.NewService(process.Options{
			Name: "loki", Path: program, Args: []string{"-config.file=" + configuration}, Dir: dir,
			Log: filepath.Join(dir, "loki.log"), Ready: func(ctx context.Context) error { return process.GetOK(ctx, s.URL()+"/ready") },
		})
		return s.service.Start(ctx)
	})
	return s, err
}

func settings(dir string, http, grpc int) []byte {
	return fmt.Appendf(nil, `auth_enabled: false
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
`, http, grpc, dir, filepath.Join(dir, "chunks"), filepath.Join(dir, "rules"))
}

// URL is where it listens.
func (s *Server) URL() string { return "http://" + ports.Address(s.port) }

// Stop ends the server. Its data stay.
func (s *Server) Stop() error { return s.service.Stop() }

// Restart starts the server again after Stop, with what it has stored. ctx bounds the start.
func (s *Server) Restart(ctx context.Context) error { return s.service.Start(ctx) }
