package signals

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Handler executes signals.
type Handler interface {
	// Submit makes a request durable, begins it and returns its signal; that may be refused. An error means that it is not in
	// force, or with [NotActiveError] that this process cannot take it.
	Submit(ctx context.Context, r Request) (Signal, error)
	// List returns all signals that are kept, the oldest first, or [NotActiveError].
	List() ([]Signal, error)
}

// NotActiveError is returned by a process that takes no signals now.
type NotActiveError struct{ Reason string }

func (e *NotActiveError) Error() string { return e.Reason }

const (
	path         = "/v1/signals"
	maxBodyBytes = 1 << 20
	stopWithin   = time.Second // bounds how long Serve waits for requests in progress when it stops
)

// answer is the body of every response.
type answer struct {
	Signals []Signal `json:"signals"`
	Error   string   `json:"error,omitempty"`
}

// Serve answers requests on l until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, h Handler, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		all, err := h.List()
		if err != nil {
			writeAnswer(w, statusOf(err), answer{Error: err.Error()})
			return
		}
		writeAnswer(w, http.StatusOK, answer{Signals: all})
	})
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var request Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes)).Decode(&request); err != nil {
			writeAnswer(w, http.StatusBadRequest, answer{Error: err.Error()})
			return
		}
		s, err := h.Submit(r.Context(), request)
		if err != nil {
			writeAnswer(w, statusOf(err), answer{Signals: []Signal{s}, Error: err.Error()})
			return
		}
		writeAnswer(w, http.StatusOK, answer{Signals: []Signal{s}})
	})
	server := &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	if server.Shutdown(stop) != nil {
		_ = server.Close() // a slow client is cut off, not waited for
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func statusOf(err error) int {
	var inactive *NotActiveError
	if errors.As(err, &inactive) {
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func writeAnswer(w http.ResponseWriter, status int, a answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // a client that has gone needs none
}
