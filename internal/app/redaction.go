package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// newShaper makes the shaper, which redacts, filters and trims changes before they are journaled.
func newShaper(cfg *config.Config, j *journal.Journal) (*shape.Shaper, error) {
	policies, metadataOnly := make([]shape.Policy, len(cfg.Resources)), make([]bool, len(cfg.Resources))
	for i, r := range cfg.Resources {
		policies[i], metadataOnly[i] = r.Policy, r.Capture == selection.CaptureMetadata
	}
	secret, err := j.Secret()
	if err != nil {
		return nil, err
	}
	return shape.New(policies, shape.Options{
		Key: []byte(cfg.Redaction.Key), JournalSecret: secret, RuleOf: selection.Owners(config.SelectionRules(cfg.Resources)),
		MetadataOnly: metadataOnly, AlwaysBefore: cfg.NeedsBefore(), Bodies: j,
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
	done, err := j.Rewrite(is, journal.RewriteFuncs{Change: shaper.RedactStoredChange, Body: shaper.RedactStoredBody})
	if err != nil {
		return fmt.Errorf("redact the contents of the journal: %w", err)
	}
	if filled {
		log.Info("the contents of the journal are redacted under the current rules, and the previous files are deleted",
			"changes", done.Changes, "deadLetters", done.DeadLetters, "states", done.Bodies, "deletedBrokenStores", done.Broken)
	}
	return nil
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
