package replay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// Options configure what a server serves.
type Options struct {
	// Corpus is the history. Required.
	Corpus *corpus.Corpus
	// Kubeconfig is the file that is written when the server listens; it holds the address and the certificate. Required.
	Kubeconfig string
	// BookmarkEvery is the time between bookmarks of a watch that asked for them; 0 means a minute.
	BookmarkEvery time.Duration
}

// Server plays a corpus. It is made by [New].
type Server struct {
	options   Options
	histories map[string]*history // by resource; not changed
	counters  map[string]*counters
	start     chan struct{} // closed at the start
	pace      pace          // set before that
	startOnce sync.Once
	handlers  sync.WaitGroup
}

// counters count the requests for one resource.
type counters struct{ lists, watchLists, watches, live atomic.Int64 }

// New renders all frames, which takes the memory of the whole corpus. It opens nothing.
func New(options Options) *Server {
	s := &Server{
		options: options, histories: map[string]*history{}, counters: map[string]*counters{}, start: make(chan struct{}),
	}
	if s.options.BookmarkEvery == 0 {
		s.options.BookmarkEvery = time.Minute
	}
	for _, r := range corpus.Resources {
		s.histories[r.String()] = newHistory(options.Corpus, r)
		s.counters[r.String()] = &counters{}
	}
	return s
}

// Run listens on a free loopback port, writes the kubeconfig and serves until ctx ends; then it cuts every connection and
// returns nil when the last request is done.
func (s *Server) Run(ctx context.Context) error {
	certificate, pem, err := selfSigned()
	if err != nil {
		return fmt.Errorf("replay server: certificate: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("replay server: %w", err)
	}
	server := &http.Server{
		Handler:           s.handler(),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	config := kubeconfig("https://"+listener.Addr().String(), pem)
	if err := clientcmd.WriteToFile(config, s.options.Kubeconfig); err != nil {
		return errors.Join(fmt.Errorf("replay server: %w", err), server.Close(), ignoreClosed(<-served))
	}
	select {
	case err = <-served:
	case <-ctx.Done():
		err = errors.Join(server.Close(), ignoreClosed(<-served))
	}
	s.handlers.Wait()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// handler routes requests, and lets Run wait for them.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	s.routeDiscovery(mux)
	s.routeControl(mux)
	mux.HandleFunc("GET /api/v1/{resource}", s.serveResource)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, notFound()) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handlers.Add(1)
		defer s.handlers.Done()
		mux.ServeHTTP(w, r)
	})
}

// started reports whether the changes have happened.
func (s *Server) started() bool {
	select {
	case <-s.start:
		return true
	default:
		return false
	}
}

// current returns the state a list sees now.
func (s *Server) current(h *history) *state {
	if s.started() {
		return &h.after
	}
	return &h.before
}

// serveResource lists or watches.
func (s *Server) serveResource(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("resource")
	h, ok := s.histories[name]
	if !ok {
		writeStatus(w, notFound())
		return
	}
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		writeStatus(w, badRequest(err))
		return
	}
	if q.watch {
		s.watch(w, r, h, q, s.counters[name])
		return
	}
	s.counters[name].lists.Add(1)
	s.list(w, h, q)
}
