package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
)

// newShaper makes what takes out of changes what is not to be emitted.
func newShaper(cfg *config.Config, j *journal.Journal) (*shape.Shaper, error) {
	policies := make([]shape.Policy, len(cfg.Resources))
	for i, r := range cfg.Resources {
		policies[i] = r.Policy
	}
	secret, err := j.Secret()
	if err != nil {
		return nil, err
	}
	return shape.New(policies, shape.Options{
		Key: []byte(cfg.Redaction.Key), JournalSecret: secret, RuleOf: ruleMatcher(cfg), AlwaysBefore: cfg.NeedsBefore(), Bodies: j,
	})
}

// ruleMatcher says which rule selects a resource: the first that does.
func ruleMatcher(cfg *config.Config) func(event.Resource) (int, bool) {
	var takers []func(event.Resource) bool
	for _, r := range cfg.Resources {
		takers = append(takers, r.Matcher())
	}
	return func(resource event.Resource) (int, bool) {
		for i, takes := range takers {
			if takes(resource) {
				return i, true
			}
		}
		return 0, false
	}
}

// redactStored redacts what the journal holds from before, if it was filled under other rules.
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
		log.Info("the rules redact otherwise than those that the journal was filled under: what it holds is redacted again, which may take a while")
	}
	done, err := j.Rewrite(is, journal.RewriteFuncs{Change: shaper.RedactStoredChange, Body: shaper.RedactStoredBody})
	if err != nil {
		return fmt.Errorf("redact what the journal holds: %w", err)
	}
	if filled {
		log.Info("what the journal holds is redacted as the rules say now; the files hold nothing else", "changes", done.Changes,
			"deadLetters", done.DeadLetters, "states", done.Bodies, "deletedBrokenStores", done.Broken)
	}
	return nil
}

// redactsByDefault says that every rule redacts as the default rule does: then it does not matter which one selects a
// resource, or whether one does.
func redactsByDefault(cfg *config.Config) bool {
	var standard config.Resource
	config.SetDefaults(&standard)
	key := []byte(cfg.Redaction.Key)
	for _, r := range cfg.Resources {
		if r.Fingerprint(key) != standard.Fingerprint(key) {
			return false
		}
	}
	return true
}

// redactionFingerprint names everything that decides what is redacted, and how. It gives nothing of the key away.
func redactionFingerprint(cfg *config.Config) string {
	h := sha256.New()
	for _, r := range cfg.Resources {
		fmt.Fprintf(h, "%q %q %s\n", r.Select, r.Exclude, r.Fingerprint([]byte(cfg.Redaction.Key)))
	}
	return hex.EncodeToString(h.Sum(nil))
}
