package signals

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// Handler executes signals. It is the same over the socket and over HTTP.
type Handler interface {
	// Submit makes a request durable, begins it and returns its signal; that may be refused. An error means that it is not in
	// force, or with [NotActiveError] that this process cannot take it.
	Submit(ctx context.Context, r Request) (Signal, error)
	// List returns all signals that are kept, the oldest first, or [NotActiveError].
	List() ([]Signal, error)
	// Letters returns dead letters of a sink in JSON: the one at an offset, with its change, or with 0 some of those behind
	// another offset, without bodies; none at the end.
	Letters(sink string, offset, after uint64) ([]json.RawMessage, error)
}

// NotActiveError is returned by a process that takes no signals now.
type NotActiveError struct{ Reason string }

func (e *NotActiveError) Error() string { return e.Reason }

const (
	// Path is where signals are taken over HTTP.
	Path = "/v1/signals"
	// lettersPath is where dead letters are read, at the socket alone: they have the bodies of objects.
	lettersPath = "/v1/deadletters"

	maxBodyBytes   = 80 << 10 // the largest request has MaxEntries objects of maxObjectKey
	maxRequests    = 16       // that are worked on at once
	maxConnections = 64       // at the socket
	readWithin     = 10 * time.Second
	dropWithin     = time.Second
	stopWithin     = time.Second // bounds how long Serve waits for requests in progress when it stops
)

type answer struct {
	Signals []Signal          `json:"signals"`
	Letters []json.RawMessage `json:"letters,omitempty"`
	Error   string            `json:"error,omitempty"`

	status int // in HTTP
}

// answerOf returns the answer with what a handler has returned.
func answerOf(all []Signal, err error) answer {
	switch {
	case errors.As(err, new(*NotActiveError)):
		return answer{Error: err.Error(), status: http.StatusServiceUnavailable}
	case errors.As(err, new(*InvalidError)):
		return answer{Error: err.Error(), status: http.StatusBadRequest}
	case err != nil:
		return answer{Signals: all, Error: err.Error(), status: http.StatusInternalServerError}
	}
	return answer{Signals: all, status: http.StatusOK}
}

// NewHTTPHandler returns a handler of requests at [Path]: POST submits a signal, GET lists all. It works on so many at once
// that their bodies and answers are bounded; the others wait, and cost no more than their connections.
func NewHTTPHandler(h Handler) http.Handler { return newHandler(h, false) }

// newHandler returns a handler, at which dead letters can be read, too.
func newHandler(h Handler, withLetters bool) http.Handler {
	slots := make(chan struct{}, maxRequests)
	answering := func(respond func(w http.ResponseWriter, r *http.Request) answer) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				writeAnswer(w, respond(w, r))
			case <-r.Context().Done(): // the client has gone
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, answering(func(http.ResponseWriter, *http.Request) answer { return answerOf(h.List()) }))
	mux.HandleFunc("POST "+Path, answering(func(w http.ResponseWriter, r *http.Request) answer { return submit(h, w, r) }))
	if withLetters {
		mux.HandleFunc("GET "+lettersPath, answering(func(_ http.ResponseWriter, r *http.Request) answer { return readLetters(h, r) }))
	}
	return mux
}

func readLetters(h Handler, r *http.Request) answer {
	var of [2]uint64
	for i, name := range []string{"offset", "after"} {
		var err error
		if of[i], err = strconv.ParseUint(r.FormValue(name), 10, 64); err != nil {
			return answerOf(nil, &InvalidError{fmt.Sprintf("%s is no offset", name)})
		}
	}
	letters, err := h.Letters(r.FormValue("sink"), of[0], of[1])
	a := answerOf(nil, err)
	a.Letters = letters
	return a
}

// submit has a handler execute the request in a body. A body that is too large is refused by its length, if it has one.
func submit(h Handler, w http.ResponseWriter, r *http.Request) answer {
	tooLarge := answer{Error: fmt.Sprintf("a request has %d bytes at most", maxBodyBytes), status: http.StatusRequestEntityTooLarge}
	if r.ContentLength > maxBodyBytes {
		dropBody(w)
		return tooLarge
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readWithin)) // a recorder in a test has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		dropBody(w)
		return tooLarge
	case err != nil:
		return answer{Error: "the body of the request did not arrive: " + err.Error(), status: http.StatusBadRequest}
	}
	request, err := DecodeRequest(body)
	if err != nil {
		return answerOf(nil, err)
	}
	s, err := h.Submit(r.Context(), request)
	return answerOf([]Signal{s}, err)
}

// dropBody ends the connection with the answer. What is left of a small body is discarded for a moment: a client that is
// still sending loses the answer otherwise.
func dropBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(dropWithin))
}

// Serve answers requests on l until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, h Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: newHandler(h, true), ReadTimeout: readWithin, WriteTimeout: serverTimeout, IdleTimeout: readWithin, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(l, maxConnections)) }()
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
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // changes are passed as they are
	_ = e.Encode(a)        // a client that has gone needs none
}

const (
	minTokenBytes = 16
	maxTokenBytes = 4 << 10
)

// ReadToken returns a token. No error has a part of it.
func ReadToken(secret credentials.Secret) (string, error) {
	token, err := secret.Read()
	switch {
	case err != nil:
		return "", err
	case len(token) > maxTokenBytes:
		return "", fmt.Errorf("%s has more than %d bytes", secret.Describe("token"), maxTokenBytes)
	case len(token) < minTokenBytes:
		return "", fmt.Errorf("%s has %d bytes; expected at least %d, such as the output of openssl rand -hex 32", secret.Describe("token"), len(token), minTokenBytes)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", errors.New(secret.Describe("token") + " has blanks or characters that are not ASCII")
	}
	return token, nil
}

// TokenGuard lets requests with a token through. It is safe for concurrent use.
type TokenGuard struct {
	secret    func() credentials.Secret // the zero value: nothing is let through
	condition *condition.Condition
}

// NewTokenGuard returns a guard with the token that secret returns, which is read for each request. If it returns none,
// nothing is served.
func NewTokenGuard(secret func() credentials.Secret, log *slog.Logger) *TokenGuard {
	return &TokenGuard{secret, condition.New(log, "signals/admin", condition.Problem{})}
}

// Wrap returns a handler that passes requests with the token on to next.
func (g *TokenGuard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.secret() == (credentials.Secret{}) {
			http.NotFound(w, r)
			return
		}
		token, err := g.readToken()
		given, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if err != nil || !isBearer || !isSame(given, token) {
			dropBody(w)
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeAnswer(w, answer{Error: "unauthorized", status: http.StatusUnauthorized})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isSame compares two tokens in a time that depends on neither.
func isSame(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// readToken reads the token, and updates the condition.
func (g *TokenGuard) readToken() (string, error) {
	token, err := ReadToken(g.secret())
	if err != nil {
		g.condition.Update(condition.Problem{
			Code: condition.SignalsUnreceived, Cause: err.Error(), Remedy: "write a token into the file of admin.signals.token",
		})
		return "", err
	}
	g.condition.Clear()
	return token, nil
}

// Status reads the token, and returns whether that is possible; OK where none is needed.
func (g *TokenGuard) Status() condition.Status {
	if g.secret() == (credentials.Secret{}) {
		g.condition.Clear()
	} else {
		_, _ = g.readToken() // the condition has the error
	}
	return g.condition.Status()
}

// Close ends the condition.
func (g *TokenGuard) Close() { g.condition.Close() }
