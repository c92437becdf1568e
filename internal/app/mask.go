package app

import (
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// masked stands where a secret was.
const masked = "***"

// mask takes configured secrets out of what is shown to people. Whoever words a message leaves them out to begin with; this
// is for those that quote others: a server that repeats what it was sent, a library that names an address. It is
// immutable.
type mask struct{ secrets *regexp.Regexp }

// From these lengths on, in bytes, a secret is looked for as a word of its own, and anywhere.
const (
	shortestWord   = 4
	shortestSecret = 10
)

func newMask(secrets []string) mask {
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
		return mask{}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // one may be a part of another
	return mask{regexp.MustCompile(strings.Join(all, "|"))}
}

func (m mask) text(s string) string {
	if m.secrets == nil {
		return s
	}
	return m.secrets.ReplaceAllLiteralString(s, masked)
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
	if m.secrets != nil {
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
