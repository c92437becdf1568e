package postgresql

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// Server is a started server.
type Server struct {
	programs string
	port     int
	env      []string
	process  *process.Process
}

// Start makes a database below the directory, which has to be new, and starts a server on it. ctx bounds the start; the
// server runs until Stop or the end of this process.
func Start(ctx context.Context, dir string) (*Server, error) {
	programs, env, err := build.PostgreSQL(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{programs: programs, env: env}
	if err := errors.Join(os.MkdirAll(dir, 0o755), process.OwnedByNobody(dir)); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := s.command("initdb", "--pgdata", data, "--username", "postgres", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
	prepare := exec.CommandContext(ctx, initdb[0], initdb[1:]...)
	prepare.Env, prepare.Dir = append(os.Environ(), s.env...), dir
	if out, err := prepare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return s, ports.Try(1, func(free []int) (err error) {
		s.port = free[0]
		// Clients find the server, its database and its user by these.
		s.env = slices.Concat(env, []string{"PGHOST=" + dir, "PGPORT=" + strconv.Itoa(s.port), "PGUSER=postgres", "PGDATABASE=postgres"})
		server := s.command("postgres", "-D", data, "-k", dir, "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
			"-c", "fsync=off")
		s.process, err = process.Start(ctx, process.Options{
			Name: "postgres", Path: server[0], Args: server[1:], Dir: dir, Env: append(os.Environ(), s.env...),
			Log: filepath.Join(filepath.Dir(dir), "postgres.log"), Ready: s.answers,
		})
		return err
	})
}

// command is a program of PostgreSQL with its arguments.
func (s *Server) command(program string, args ...string) []string {
	return process.AsNobody(append([]string{filepath.Join(s.programs, program)}, args...)...)
}

func (s *Server) answers(ctx context.Context) error {
	ask := exec.CommandContext(ctx, s.Psql(), "--command", "SELECT 1")
	ask.Env = append(os.Environ(), s.env...)
	out, err := ask.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Psql is the path of psql.
func (s *Server) Psql() string { return filepath.Join(s.programs, "psql") }

// Env are the environment variables that lead clients of libpq here.
func (s *Server) Env() []string { return s.env }

// Address is where the server listens for clients without libpq, by TCP. No password is needed.
func (s *Server) Address() string { return ports.Address(s.port) }

// Stop ends the server when its clients have gone.
func (s *Server) Stop() error { return s.process.Stop() }
