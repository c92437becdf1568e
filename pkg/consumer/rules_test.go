package consumer

import (
	"math/big"
	"os"
	"regexp"
	"testing"
	"time"
)

// ruleModel is a literal implementation of the rules in docs/consuming.md, written independently of [Table], for one
// resource. Comments give the numbers of the rules.
type ruleModel struct {
	rows map[Key]*remembered // 2
	ends []Record            // 8
}

// remembered is the state that the rules require for one object.
type remembered struct {
	exists                   bool
	body                     string
	id, uid, resourceVersion string    // 4
	listVersion              string    // 8
	listed                   bool      // 8: the record is not of a watch
	observedAt               time.Time // 8
	snapshot                 string    // 6: snapshot.id of the last record that had one
	lost                     bool      // 5: the newest record is a deleted with coalesced
}

func newRuleModel() *ruleModel { return &ruleModel{rows: map[Key]*remembered{}} }

func (l *ruleModel) applyRecord(r Record) {
	key := Key{r.Namespace, r.Name}
	switch r.Type {
	case "added", "updated", "snapshot", "sync", "deleted":
		if m := l.rows[key]; m == nil || !m.ignoresRecord(r) {
			l.storeRecord(key, r)
		}
	case "gap":
		l.applyGap(r)
	case "snapshot.end":
		l.applySnapshotEnd(r)
	} // 9
}

// ignoresRecord implements rules 4 to 7 and 10, for an object with a stored state.
func (m *remembered) ignoresRecord(r Record) bool {
	if m.wasReadAfter(r) { // 10
		if r.Snapshot != nil && m.snapshot == "" {
			m.snapshot = r.Snapshot.ID
		}
		return true
	}
	if r.ID == m.id { // 4
		return true
	}
	if r.Coalesced { // 5
		return false
	}
	if r.Snapshot != nil && r.Snapshot.ID != m.snapshot { // 6
		return false
	}
	if !m.exists && r.Snapshot == nil && r.UID == m.uid && r.ResourceVersion == m.resourceVersion { // 4
		return true
	}
	return !m.lost && isLower(r.ResourceVersion, m.resourceVersion) // 4, 5
}

// storeRecord implements rule 3, and updates the stored state.
func (l *ruleModel) storeRecord(key Key, r Record) {
	m := remembered{}
	if old := l.rows[key]; old != nil {
		m.snapshot = old.snapshot
	}
	m.exists, m.body = r.Type != "deleted", string(r.After)
	m.id, m.uid, m.resourceVersion, m.observedAt = r.ID, r.UID, r.ResourceVersion, r.ObservedAt
	m.listVersion, m.listed = r.ListVersion, r.Coalesced || r.Snapshot != nil || r.Type == "sync"
	if r.Snapshot != nil {
		m.snapshot = r.Snapshot.ID
	}
	m.lost = r.Coalesced && r.Type == "deleted" // 5
	for _, end := range l.ends {                // 8
		if m.isRemovedBy(key, end) {
			delete(l.rows, key)
			return
		}
	}
	l.rows[key] = &m
}

// applyGap implements rule 7.
func (l *ruleModel) applyGap(r Record) {
	if !isLower(r.Gap.To, r.Gap.From) {
		return
	}
	for _, m := range l.rows {
		if readAt := m.readAt(); readAt == r.Gap.To || isLower(r.Gap.To, readAt) {
			m.listVersion, m.observedAt = r.Gap.To, time.Time{}
		}
		if isLower(r.Gap.To, m.resourceVersion) {
			m.resourceVersion = r.Gap.To
		}
	}
	for i, end := range l.ends {
		if end.Snapshot.Position == r.Gap.To || isLower(r.Gap.To, end.Snapshot.Position) {
			end.Snapshot.Position, l.ends[i].ObservedAt = r.Gap.To, time.Time{}
		}
	}
}

// applySnapshotEnd implements rule 8.
func (l *ruleModel) applySnapshotEnd(end Record) {
	for _, earlier := range l.ends {
		if earlier.Snapshot.ID == end.Snapshot.ID {
			return
		}
	}
	own := *end.Snapshot
	end.Snapshot = &own
	l.ends = append(l.ends, end)
	for key, m := range l.rows {
		if m.isRemovedBy(key, end) {
			delete(l.rows, key)
		}
	}
}

// isRemovedBy implements rule 8 for one object.
func (m *remembered) isRemovedBy(key Key, end Record) bool {
	position := end.Snapshot.Position
	if !m.exists || end.Namespace != "" && end.Namespace != key.Namespace || m.snapshot == end.Snapshot.ID || isLower(position, m.resourceVersion) {
		return false
	}
	readAt := m.readAt()
	switch {
	case isLower(readAt, position):
		return true
	case isLower(position, readAt):
		return false
	}
	return m.observedAt.Before(end.ObservedAt)
}

// wasReadAfter implements rule 10.
func (m *remembered) wasReadAfter(r Record) bool {
	other := remembered{resourceVersion: r.ResourceVersion, listVersion: r.ListVersion, listed: r.Coalesced || r.Snapshot != nil || r.Type == "sync"}
	readAt, isOlder := other.readAt(), isLower(r.ResourceVersion, m.resourceVersion)
	switch {
	case !r.ObservedAt.Before(m.observedAt):
		return false
	case isLower(readAt, m.readAt()):
		return !m.exists || isOlder || r.ResourceVersion == m.resourceVersion
	case isNumber(readAt) && readAt == m.readAt():
		return !m.exists || isOlder
	}
	return isOlder && (!isNumber(readAt) || !isNumber(m.readAt()))
}

// readAt implements the version at which a record was read, of rule 8.
func (m *remembered) readAt() string {
	if m.listVersion == "" && !m.listed {
		return m.resourceVersion
	}
	return m.listVersion
}

// isLower compares resourceVersions, which are growing integers within one resource. // 4
func isLower(a, b string) bool {
	x, okA := new(big.Int).SetString(a, 10)
	y, okB := new(big.Int).SetString(b, 10)
	return okA && okB && x.Cmp(y) < 0
}

func isNumber(version string) bool { return isLower("0", version) }

// existingBodies returns the bodies of existing objects by key.
func (l *ruleModel) existingBodies() map[Key]string {
	all := map[Key]string{}
	for key, m := range l.rows {
		if m.exists {
			all[key] = m.body
		}
	}
	return all
}

// TestPageAndCodeHaveTheSameRules fails when a rule is added to the page but not to the code in this file.
func TestPageAndCodeHaveTheSameRules(t *testing.T) {
	page, err := os.ReadFile("../../docs/consuming.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("rules_test.go")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile(`(?m)^(\d+)\. \*\*`).FindAllStringSubmatch(string(page), -1)
	const want = 10
	if len(rules) != want {
		t.Fatalf("docs/consuming.md has %d rules, these tests know %d", len(rules), want)
	}
	for _, rule := range rules[1:] { // the first is the order of the records
		if named := regexp.MustCompile(`// (.* )?(rules? )?` + rule[1] + `\b|rules? ` + rule[1] + `\b|to ` + rule[1] + `\b`); !named.Match(code) {
			t.Errorf("rule %s is not in the code", rule[1])
		}
	}
}
