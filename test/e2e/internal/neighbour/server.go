package neighbour

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// Server serves HTTPS on one loopback port, which it can leave and take again. Its methods may be called concurrently.
type Server struct {
	handler http.Handler
	port    int

	mu      sync.Mutex
	current *httptest.Server // nil while it is down
}

// start returns a server that is up.
func start(handler http.Handler) (*Server, error) {
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	s := &Server{handler: handler, port: free[0]}
	return s, s.Up()
}

// Port returns the port, which stays the same.
func (s *Server) Port() int { return s.port }

// Up listens again. A server that is up stays so.
func (s *Server) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return nil
	}
	listener, err := net.Listen("tcp", ports.Address(s.port))
	if err != nil {
		return err
	}
	s.current = httptest.NewUnstartedServer(s.handler)
	s.current.Listener.Close()
	s.current.Listener = listener
	s.current.StartTLS()
	return nil
}

// Down cuts all connections and closes the port. It returns when no request runs.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return
	}
	s.current.CloseClientConnections()
	s.current.Close()
	s.current = nil
}

// CA returns the certificate that verifies a server that is up, as PEM.
func (s *Server) CA() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.current.Certificate().Raw})
}
