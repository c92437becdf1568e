package app

import (
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// masked stands where a secret was.
const masked = "***"

// mask takes configured secrets out of what is shown to people. Whoever words a message leaves them out to begin with; this
// is for those that quote others: a server that repeats what it was sent, a library that names an address. Copies of it are
// the same mask. It is safe for concurrent use; the zero value masks nothing.
type mask struct {
	secrets *atomic.Pointer[regexp.Regexp]
}

// From these lengths on, in bytes, a secret is looked for as a word of its own, and anywhere.
const (
	shortestWord   = 4
	shortestSecret = 10
)

func newMask(secrets []string) mask {
	m := mask{new(atomic.Pointer[regexp.Regexp])}
	m.replace(secrets)
	return m
}

// replace masks these secrets from now on, and no others.
func (m mask) replace(secrets []string) {
	if m.secrets != nil {
		m.secrets.Store(patternOf(secrets))
	}
}

// patternOf finds secrets in a text; nil where there are none.
func patternOf(secrets []string) *regexp.Regexp {
	var all []string
	for _, secret := range secrets {
		for _, form := range []string{secret, strings.TrimSpace(secret)} {
			switch quoted := regexp.QuoteMeta(form); {
			case len(form) < shortestWord:
			case len(form) < shortestSecret:
				all = append(all, `\b`+quoted+`\b`)
			default:
				all = append(all, quoted)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // one may be a part of another
	return regexp.MustCompile(strings.Join(all, "|"))
}

func (m mask) pattern() *regexp.Regexp {
	if m.secrets == nil {
		return nil
	}
	return m.secrets.Load()
}

func (m mask) text(s string) string {
	pattern := m.pattern()
	if pattern == nil {
		return s
	}
	return pattern.ReplaceAllLiteralString(s, masked)
}

// attr is for [slog.HandlerOptions].
func (m mask) attr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, m.text(v.String()))
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			return slog.String(a.Key, m.text(err.Error()))
		}
		if list, ok := v.Any().([]string); ok {
			return slog.Any(a.Key, m.all(list))
		}
	}
	return a
}

func (m mask) all(list []string) []string {
	clean := make([]string, len(list))
	for i, s := range list {
		clean[i] = m.text(s)
	}
	return clean
}

// err is err with a text without secrets; nil stays nil.
func (m mask) err(err error) error {
	if err == nil || m.text(err.Error()) == err.Error() {
		return err
	}
	return &maskedError{err, m.text(err.Error())}
}

type maskedError struct {
	err  error
	text string
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// fields masks every string that v, a pointer to a struct, holds within structs and slices.
func (m mask) fields(v any) {
	if m.pattern() != nil {
		m.walk(reflect.ValueOf(v).Elem())
	}
}

func (m mask) walk(v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(m.text(v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			m.walk(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			m.walk(v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			m.walk(v.Elem())
		}
	}
}
