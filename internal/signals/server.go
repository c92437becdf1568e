package signals

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Handler executes signals. It is the same over the socket and over HTTP.
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
	// Path is where signals are taken over HTTP.
	Path = "/v1/signals"

	maxBodyBytes = 1 << 20
	stopWithin   = time.Second // bounds how long Serve waits for requests in progress when it stops
)

// answer is the answer to every request.
type answer struct {
	Signals []Signal `json:"signals"`
	Error   string   `json:"error,omitempty"`

	status int // in HTTP
}

// submit has a handler execute a request in JSON.
func submit(ctx context.Context, h Handler, body []byte) answer {
	var request Request
	if err := json.Unmarshal(body, &request); err != nil {
		return answer{Error: "this is no signal: " + err.Error(), status: http.StatusBadRequest}
	}
	s, err := h.Submit(ctx, request)
	return answerOf([]Signal{s}, err)
}

// answerOf returns the answer with what a handler has returned.
func answerOf(all []Signal, err error) answer {
	var inactive *NotActiveError
	switch {
	case errors.As(err, &inactive):
		return answer{Error: err.Error(), status: http.StatusServiceUnavailable}
	case err != nil:
		return answer{Signals: all, Error: err.Error(), status: http.StatusInternalServerError}
	}
	return answer{Signals: all, status: http.StatusOK}
}

// NewHTTPHandler returns a handler of requests at [Path]: POST submits a signal, GET lists all.
func NewHTTPHandler(h Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, _ *http.Request) {
		writeAnswer(w, answerOf(h.List()))
	})
	mux.HandleFunc("POST "+Path, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
		if err != nil {
			writeAnswer(w, answer{Error: err.Error(), status: http.StatusBadRequest})
			return
		}
		writeAnswer(w, submit(r.Context(), h, body))
	})
	return mux
}

// Serve answers requests on l until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, h Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: NewHTTPHandler(h), ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
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

func writeAnswer(w http.ResponseWriter, a answer) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(a.status)
	_ = json.NewEncoder(w).Encode(a) // a client that has gone needs none
}
