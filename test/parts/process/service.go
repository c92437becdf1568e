package process

import (
	"context"
	"fmt"
	"sync"
)

// Service is a child that can be started again with the same options, as a test of an outage needs it. Its methods
// may be called concurrently; they run one after the other.
type Service struct {
	options Options

	mu      sync.Mutex
	current *Process // nil unless started
}

// NewService returns a service that does not run yet.
func NewService(options Options) *Service { return &Service{options: options} }

// Start starts the child and returns when it is ready; ctx bounds the start only. A running service is an error, a
// child that has ended is replaced. Other errors are those of the function Start.
func (s *Service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && !s.current.ended() {
		return fmt.Errorf("%s runs already; stop or kill it first", s.options.Name)
	}
	p, err := Start(ctx, s.options)
	if err != nil {
		return err
	}
	s.current = p
	return nil
}

// Stop stops the child as Process.Stop does. A service that does not run is no error; a child that ended by itself
// since Start is one.
func (s *Service) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil
	}
	p := s.current
	s.current = nil
	return p.Stop()
}

// Kill kills the child as Process.Kill does. A service that does not run is no error.
func (s *Service) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil
	}
	p := s.current
	s.current = nil
	return p.Kill()
}

// Process returns the running child, or nil. It stays the caller's to read, not to stop.
func (s *Service) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}
