package signals

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

const (
	minTokenBytes = 16
	maxTokenBytes = 4 << 10
)

// ReadToken returns the token in a file, without the blanks at its ends. No error has a part of it.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	token := string(bytes.TrimSpace(content))
	switch {
	case err != nil:
		return "", err
	case len(content) > maxTokenBytes:
		return "", fmt.Errorf("file %s has more than %d bytes; expected a token", path, maxTokenBytes)
	case len(token) < minTokenBytes:
		return "", fmt.Errorf("the token in file %s has %d bytes; expected at least %d, such as the output of openssl rand -hex 32", path, len(token), minTokenBytes)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("the token in file %s has blanks or characters that are not ASCII", path)
	}
	return token, nil
}

// TokenGuard lets requests with a token through. It is safe for concurrent use.
type TokenGuard struct {
	file      func() string // "": nothing is let through
	condition *condition.Condition
}

// NewTokenGuard returns a guard with the token of the file that file returns, which is read for each request. If it returns
// "", nothing is served.
func NewTokenGuard(file func() string, log *slog.Logger) *TokenGuard {
	return &TokenGuard{file, condition.New(log, "signals/admin", condition.Problem{})}
}

// Wrap returns a handler that passes requests with the token on to next.
func (g *TokenGuard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.file() == "" {
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
	token, err := ReadToken(g.file())
	if err != nil {
		g.condition.Update(condition.Problem{
			Code: condition.SignalsUnreceived, Cause: err.Error(), Remedy: "write a token into the file that admin.signals.tokenFile names",
		})
		return "", err
	}
	g.condition.Clear()
	return token, nil
}

// Status reads the token, and returns whether that is possible; OK where none is needed.
func (g *TokenGuard) Status() condition.Status {
	if g.file() == "" {
		g.condition.Clear()
	} else {
		_, _ = g.readToken() // the condition has the error
	}
	return g.condition.Status()
}

// Close ends the condition.
func (g *TokenGuard) Close() { g.condition.Close() }
