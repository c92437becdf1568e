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

// masked replaces a secret.
const masked = "***"

// mask removes configured secrets from output. Messages of this program never contain them; the mask covers quoted texts: a
// server that repeats a request, a library that names an address. Copies share the same secrets. It is safe for concurrent
// use; the zero value masks nothing.
type mask struct {
	secrets *atomic.Pointer[regexp.Regexp]
}

// Secrets shorter than minWordLength bytes are not masked; those shorter than minSubstringLength only as whole words.
const (
	minWordLength      = 4
	minSubstringLength = 10
)

func newMask(secrets []string) mask {
	m := mask{new(atomic.Pointer[regexp.Regexp])}
	m.replaceSecrets(secrets)
	return m
}

// replaceSecrets replaces the set of secrets.
func (m mask) replaceSecrets(secrets []string) {
	if m.secrets != nil {
		m.secrets.Store(secretPattern(secrets))
	}
}

// secretPattern returns a pattern that matches any of secrets; nil for none.
func secretPattern(secrets []string) *regexp.Regexp {
	var all []string
	for _, secret := range secrets {
		for _, form := range []string{secret, strings.TrimSpace(secret)} {
			switch quoted := regexp.QuoteMeta(form); {
			case len(form) < minWordLength:
			case len(form) < minSubstringLength:
				all = append(all, `\b`+quoted+`\b`)
			default:
				all = append(all, quoted)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // longest first, because one may be a part of another
	return regexp.MustCompile(strings.Join(all, "|"))
}

func (m mask) loadPattern() *regexp.Regexp {
	if m.secrets == nil {
		return nil
	}
	return m.secrets.Load()
}

func (m mask) maskText(s string) string {
	pattern := m.loadPattern()
	if pattern == nil {
		return s
	}
	return pattern.ReplaceAllLiteralString(s, masked)
}

// maskAttr masks a log attribute, for ReplaceAttr of [slog.HandlerOptions]. A duration is text with its unit, in JSON too.
func (m mask) maskAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindDuration:
		return slog.String(a.Key, v.Duration().String())
	case slog.KindString:
		return slog.String(a.Key, m.maskText(v.String()))
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			return slog.String(a.Key, m.maskText(err.Error()))
		}
		if list, ok := v.Any().([]string); ok {
			return slog.Any(a.Key, m.maskAll(list))
		}
	}
	return a
}

func (m mask) maskAll(list []string) []string {
	clean := make([]string, len(list))
	for i, s := range list {
		clean[i] = m.maskText(s)
	}
	return clean
}

// maskError returns err with a masked text; nil stays nil. The result unwraps to err.
func (m mask) maskError(err error) error {
	if err == nil || m.maskText(err.Error()) == err.Error() {
		return err
	}
	return &maskedError{err, m.maskText(err.Error())}
}

type maskedError struct {
	err  error
	text string
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// maskFields masks every string in v, a pointer to a struct, including those in nested structs, slices and pointers.
func (m mask) maskFields(v any) {
	if m.loadPattern() != nil {
		m.maskValue(reflect.ValueOf(v).Elem())
	}
}

func (m mask) maskValue(v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(m.maskText(v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			m.maskValue(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			m.maskValue(v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			m.maskValue(v.Elem())
		}
	}
}
