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
	"github.com/kubecdc/kubecdc/pkg/source/involved"
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
	done, err := j.Rewrite(is, journal.RewriteFuncs{
		Change: func(c *event.Change) bool {
			forgotten := forgetInvolved(c.Resource, &c.Before, &c.After)
			if selection.IsEvents(c.Resource) && c.HasValues() { // which may be of the object too, also where no state has it
				c.Changed, c.Omitted, forgotten = nil, append(c.Omitted, "changed"), true
			}
			return shaper.RedactStoredChange(c) || forgotten
		},
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
