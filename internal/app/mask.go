package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks/history"
	"github.com/kubecdc/kubecdc/pkg/source/involved"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
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

func (m mask) replaceSecrets(secrets []string) {
	if m.secrets != nil {
		m.secrets.Store(secretPattern(secrets))
	}
}

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
			clean := make([]string, len(list))
			for i, s := range list {
				clean[i] = m.maskText(s)
			}
			return slog.Any(a.Key, clean)
		}
	}
	return a
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

// newShaper makes the shaper, which redacts, filters and trims changes before they are journaled. secret is that of the
// journal.
func newShaper(cfg *config.Config, secret []byte, bodies shape.Bodies) (*shape.Shaper, error) {
	policies, metadataOnly := make([]shape.Policy, len(cfg.Resources)), make([]bool, len(cfg.Resources))
	for i, r := range cfg.Resources {
		policies[i], metadataOnly[i] = r.Policy, r.Capture == selection.CaptureMetadata
		if cfg.NeedsValues() {
			policies[i].Changed = shape.ChangedValues
		}
	}
	return shape.New(policies, shape.Options{
		Key: []byte(cfg.Redaction.Key), JournalSecret: secret, RuleOf: selection.Owners(config.SelectionRules(cfg.Resources)),
		MetadataOnly: metadataOnly, AlwaysBefore: cfg.NeedsBefore(), Bodies: bodies,
	})
}

// redactStored redacts the contents of the journal again if it was written under rules with another redaction, or that read
// more of the objects.
func redactStored(cfg *config.Config, j *journal.Journal, shaper *shape.Shaper, log *slog.Logger) error {
	was, err := j.Redaction()
	if err != nil {
		return err
	}
	is := redactionFingerprint(cfg)
	if was == is {
		return nil
	}
	filled := j.Newest() > 0
	if filled {
		log.Info("the redaction or the capture of the rules has changed: redacting the contents of the journal again, " +
			"which may take a while")
	}
	done, err := j.Rewrite(is, journal.RewriteFuncs{
		Change: func(c *event.Change) bool { return redactChange(shaper, c) },
		Body: func(r event.Resource, b *event.Body) bool {
			forgotten := forgetInvolved(r, &b.Raw)
			return shaper.RedactStoredBody(r, b) || forgotten
		},
	})
	if err != nil {
		return fmt.Errorf("redact the contents of the journal: %w", err)
	}
	if filled {
		log.Info("the contents of the journal are redacted under the current rules, and the previous files are deleted",
			"changes", done.Changes, "deadLetters", done.DeadLetters, "states", done.Bodies, "deletedBrokenStores", done.Broken)
	}
	return nil
}

// redactChange redacts a change that was redacted under other rules, and reports whether it has changed.
func redactChange(shaper *shape.Shaper, c *event.Change) bool {
	forgotten := forgetInvolved(c.Resource, &c.Before, &c.After)
	if selection.IsEvents(c.Resource) && c.HasValues() { // which may be of the object too, also where no state has it
		c.Changed, c.Omitted, forgotten = nil, append(c.Omitted, "changed"), true
	}
	return shaper.RedactStoredChange(c) || forgotten
}

// RedactHistory redacts what a history has by the rules of a configuration, and returns how many rows it has changed.
func RedactHistory(cfg *config.Config, in history.Config) (rows int64, err error) {
	shaper, err := newShaper(cfg, []byte(rand.Text()), noBodies{})
	if err != nil {
		return 0, err
	}
	return history.Redact(in, func(c *event.Change) bool { return redactChange(shaper, c) })
}

type noBodies struct{}

func (noBodies) Body(string, string) (event.Body, bool, error) { return event.Body{}, false, nil }
func (noBodies) BodyResources() []string                       { return nil }
func (noBodies) DropBodies(context.Context, string) error      { return nil }

// forgetInvolved removes what states of an Event have of its object, which was redacted as that was before. It reports
// whether there was any.
func forgetInvolved(r event.Resource, bodies ...*[]byte) (forgotten bool) {
	for _, body := range bodies {
		if selection.IsEvents(r) && len(*body) > 0 {
			was := len(*body)
			*body = involved.Remove(*body, "the redaction has changed since")
			forgotten = forgotten || len(*body) != was
		}
	}
	return forgotten
}

// redactsByDefault reports whether every rule redacts like the default rule, and reads whole objects. Then the rule that
// selects a resource makes no difference to what is stored.
func redactsByDefault(cfg *config.Config) bool {
	var standard config.Resource
	config.SetDefaults(&standard)
	key := []byte(cfg.Redaction.Key)
	for _, r := range cfg.Resources {
		if r.Fingerprint(key) != standard.Fingerprint(key) || r.Capture == selection.CaptureMetadata {
			return false
		}
	}
	return true
}

// redactionFingerprint identifies the settings that determine the redaction. It does not reveal the key.
func redactionFingerprint(cfg *config.Config) string {
	if redactsByDefault(cfg) {
		return "default"
	}
	h := sha256.New()
	for _, r := range cfg.Resources {
		fmt.Fprintf(h, "%q %q %s %s\n", r.Select, r.Exclude, r.Fingerprint([]byte(cfg.Redaction.Key)), r.Capture)
	}
	return hex.EncodeToString(h.Sum(nil))
}
