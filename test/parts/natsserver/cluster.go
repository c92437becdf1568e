package natsserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

const (
	healthPoll    = 100 * time.Millisecond
	healthTimeout = 5 * time.Minute
)

// Servers are the servers of one cluster.
type Servers []*Server

// StartCluster starts n servers with routes to each other, in directories "nats-1" and so on below dir, and returns
// when all of them are healthy. config is appended to each configuration file. After an error nothing runs.
func StartCluster(ctx context.Context, dir string, n int, config string) (Servers, error) {
	return StartClusterThrough(ctx, dir, n, config, func(_, _, port int) int { return port })
}

// StartClusterThrough is StartCluster with something between the servers: server from, counted from 0, connects to the
// port that between returns to reach server to, which takes routes at port. When a port was taken meanwhile, all are
// asked for again.
func StartClusterThrough(ctx context.Context, dir string, n int, config string, between func(from, to, port int) int) (Servers, error) {
	var servers Servers
	err := ports.Try(n, func(routes []int) error {
		var err error
		if servers, err = startServers(ctx, dir, config, routes, between); err != nil {
			return err
		}
		if err := servers.WaitHealthy(ctx); err != nil {
			// Stop reports a server that ended by itself, as after another process took its route port.
			return errors.Join(err, servers.Stop())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return servers, nil
}

// startServers starts one server a route port. They need not wait for each other: a server takes clients alone.
func startServers(ctx context.Context, dir, config string, routes []int, between func(from, to, port int) int) (Servers, error) {
	var servers Servers
	for i, port := range routes {
		var others []int
		for j, other := range routes {
			if i != j {
				others = append(others, between(i, j, other))
			}
		}
		name := fmt.Sprintf("nats-%d", i+1)
		s, err := Start(ctx, Options{
			Dir:     filepath.Join(dir, name),
			Name:    name,
			Config:  config,
			Cluster: &Cluster{Name: "kubecdc-test", Port: port, Routes: others},
		})
		if err != nil {
			return nil, errors.Join(err, servers.Kill())
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// WaitHealthy returns when every server is healthy; call it after a restart, before the test goes on to count on all
// of them. It gives up when ctx ends or after five minutes.
func (s Servers) WaitHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	poll := time.NewTicker(healthPoll)
	defer poll.Stop()
	for {
		err := s.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the NATS cluster is not healthy (%w): %w", ctx.Err(), err)
		case <-poll.C:
		}
	}
}

func (s Servers) healthy(ctx context.Context) error {
	for _, server := range s {
		if err := server.Healthy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// URL returns the addresses of all servers, separated by commas as clients take them.
func (s Servers) URL() string {
	urls := make([]string, 0, len(s))
	for _, server := range s {
		urls = append(urls, server.URL())
	}
	return strings.Join(urls, ",")
}

// Stop stops all servers. They are gone in any case, see Server.Stop.
func (s Servers) Stop() error {
	var errs []error
	for _, server := range s {
		errs = append(errs, server.Stop())
	}
	return errors.Join(errs...)
}

// Kill kills all servers, one right after the other.
func (s Servers) Kill() error {
	var errs []error
	for _, server := range s {
		errs = append(errs, server.Kill())
	}
	return errors.Join(errs...)
}
