package oracle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

// The types of changes, see docs/events.md.
const (
	added    = "added"
	updated  = "updated"
	deleted  = "deleted"
	snapshot = "snapshot"
	begin    = "snapshot.begin"
	end      = "snapshot.end"
	gap      = "gap"

	watermark = "watermark"
)

// Rules list exceptions from the plain promise.
type Rules struct {
	// Repetitions allows the same change several times under its ID, as after a kill.
	Repetitions bool
	// Gaps allows gap records and, within them, missing revisions and coalesced changes.
	Gaps bool
	// Keyless is a bus that has no keys, as a file.
	Keyless bool
}

// stream is a bus's records, sorted for judging.
type stream struct {
	objects map[bus.Object][]bus.Record // in order, the first of each ID
	gaps    map[bus.Object][]bus.Gap    // by the resource alone
	frames  map[string]*frame           // by the snapshot's ID
	seen    map[string]int              // ID to number of records
}

func sortOut(records []bus.Record) stream {
	s := stream{objects: make(map[bus.Object][]bus.Record), gaps: make(map[bus.Object][]bus.Gap),
		frames: make(map[string]*frame), seen: make(map[string]int)}
	for _, r := range records {
		s.seen[r.ID]++
		s.frame(r)
		switch {
		case s.seen[r.ID] > 1, r.Replay != nil: // the past
		case r.Type == gap && r.Gap != nil:
			s.gaps[r.Object] = append(s.gaps[r.Object], *r.Gap)
		case control(r.Type):
		default:
			s.objects[r.Object] = append(s.objects[r.Object], r)
		}
	}
	return s
}

// Missing returns the revisions that records neither hold nor cover by a gap, in the order they happened. Objects that
// existed at the start may be emitted as a snapshot at a later revision, and so may changes before the end of a first
// snapshot; what came before it is not missing.
func (h *History) Missing(records []bus.Record) []Revision {
	s := sortOut(records)
	var missing []Revision
	told := make(map[bus.Object]map[int64]bool)
	from := make(map[bus.Object]int64) // revision of the object in a snapshot
	for o, all := range s.objects {
		told[o] = make(map[int64]bool)
		for _, r := range all {
			told[o][r.Revision] = true
			if r.Snapshot != nil {
				from[o] = max(from[o], r.Revision)
			}
		}
	}
	for _, r := range h.Existing {
		if !told[r.Object][r.Revision] && from[r.Object] == 0 && !s.covers(r) && !h.goneBy(r.Object, s.position(r.Object)) {
			missing = append(missing, r)
		}
	}
	for _, r := range h.Revisions {
		if !told[r.Object][r.Revision] && r.Revision > max(from[r.Object], s.position(r.Object)) && !s.covers(r) {
			missing = append(missing, r)
		}
	}
	return missing
}

// goneBy reports whether the object was deleted up to and with the revision.
func (h *History) goneBy(o bus.Object, revision int64) bool {
	return slices.ContainsFunc(h.Revisions, func(r Revision) bool {
		return r.Object == o && r.Op == Deleted && r.Revision <= revision
	})
}

// covers reports whether a gap speaks of the revision.
func (s stream) covers(r Revision) bool {
	for _, g := range s.gaps[bus.Object{Group: r.Object.Group, Resource: r.Object.Resource}] {
		from, _ := strconv.ParseInt(g.From, 10, 64) // empty: from the beginning
		to, err := strconv.ParseInt(g.To, 10, 64)
		if err == nil && from < r.Revision && r.Revision <= to {
			return true
		}
	}
	return false
}

// Judge returns what is wrong with the records of one bus, in sentences; nothing if all is well.
func (h *History) Judge(records []bus.Record, rules Rules) []string {
	var wrong []string
	s := sortOut(records)
	for _, r := range h.Missing(records) {
		wrong = append(wrong, fmt.Sprintf("%v: revision %d (%v) is missing", r.Object, r.Revision, r.Op))
	}
	for _, r := range records {
		wrong = append(wrong, describes(r)...)
		if want := r.Cluster + "/" + key(r.Object); !rules.Keyless && r.Key != want && r.Type != watermark {
			wrong = append(wrong, fmt.Sprintf("%v: record %s: key %q, want %q", r.Object, r.ID, r.Key, want))
		}
	}
	if !rules.Repetitions {
		wrong = append(wrong, s.repeated()...)
	}
	if !rules.Gaps {
		wrong = append(wrong, s.unexpectedGaps()...)
	}
	wrong = append(wrong, s.unframed()...)
	truth := h.byObject()
	for o, all := range s.objects {
		wrong = append(wrong, s.ascends(all)...)
		wrong = append(wrong, h.happened(truth[o], all)...)
	}
	for o, all := range truth {
		wrong = append(wrong, ends(all, s.objects[o])...)
	}
	slices.Sort(wrong)
	return wrong
}

func (h *History) byObject() map[bus.Object][]Revision {
	truth := make(map[bus.Object][]Revision)
	for _, r := range slices.Concat(h.Existing, h.Revisions) {
		truth[r.Object] = append(truth[r.Object], r)
	}
	return truth
}

// describes checks that a record is consistent in itself: its ID, its bodies.
func describes(r bus.Record) []string {
	var wrong []string
	complain := func(format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%v: record %s: %s", r.Object, r.ID, fmt.Sprintf(format, args...)))
	}
	if r.DuplicateDetection != "" && r.DuplicateDetection != r.ID {
		complain("the bus drops duplicates by %q", r.DuplicateDetection)
	}
	if control(r.Type) {
		return wrong
	}
	own := r.ID
	if r.FinalStateUnknown { // behind that is what found out
		own = own[:max(0, strings.LastIndexByte(own, '/'))]
	}
	if want := id(r); own != want || r.UID == "" {
		complain("the ID should be %q", want)
	}
	body := r.After
	if r.Type == deleted {
		body = r.Before
	}
	if body == nil && r.FinalStateUnknown {
		return wrong
	}
	var object struct {
		Metadata struct{ Namespace, Name, UID, ResourceVersion string }
	}
	if err := json.Unmarshal(body, &object); err != nil {
		complain("body: %v", err)
		return wrong
	}
	m := object.Metadata
	if m.Namespace != r.Namespace || m.Name != r.Name || m.UID != r.UID || m.ResourceVersion != r.ResourceVersion {
		complain("its body speaks of %+v", m)
	}
	if bytes.Contains(body, []byte(`"managedFields"`)) {
		complain("its body carries managedFields")
	}
	return wrong
}

// id is the identity of an object's record, see docs/events.md.
func id(r bus.Record) string {
	id := strings.Join([]string{r.Cluster, r.UID, r.ResourceVersion, r.Type}, "/")
	if r.Type == snapshot && r.Snapshot != nil {
		id += "/" + r.Snapshot.ID
	}
	return id
}

// key is the key of an object's records, see docs/events.md.
func key(o bus.Object) string {
	return strings.Join([]string{cmp.Or(o.Group, "core"), o.Resource, o.Namespace, o.Name}, "/")
}

func (s stream) repeated() []string {
	var wrong []string
	for id, times := range s.seen {
		if times > 1 {
			wrong = append(wrong, fmt.Sprintf("ID %s is there %d times", id, times))
		}
	}
	return wrong
}

func (s stream) unexpectedGaps() []string {
	var wrong []string
	for o, all := range s.gaps {
		for _, g := range all {
			wrong = append(wrong, fmt.Sprintf("%v: gap from %q to %q: %s", o, g.From, g.To, g.Reason))
		}
	}
	return wrong
}

// ascends checks one object's order. Only an unwatched delete has no revision of its own, nor has a snapshot where the
// resource begins again: they carry the last one known, which the record before them has too.
func (s stream) ascends(all []bus.Record) []string {
	var wrong []string
	for i := 1; i < len(all); i++ {
		before, r := all[i-1], all[i]
		if r.Revision > before.Revision || r.Revision == before.Revision && (r.Type == snapshot && s.beginsAgain(r.Object) || r.Type == deleted && r.FinalStateUnknown) {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%v: %s %d (%s) comes after %s %d (%s)", r.Object, r.Type, r.Revision, r.Place,
			before.Type, before.Revision, before.Place))
	}
	return wrong
}

// happened checks that each record agrees with the history at its revision.
func (h *History) happened(truth []Revision, all []bus.Record) []string {
	var wrong []string
	for _, r := range all {
		i := slices.IndexFunc(truth, func(t Revision) bool { return t.Revision == r.Revision })
		switch {
		case i < 0 && r.Revision > h.Start:
			wrong = append(wrong, fmt.Sprintf("%v: %s %d never happened", r.Object, r.Type, r.Revision))
		case i >= 0 && !fits(truth[i].Op, r):
			wrong = append(wrong, fmt.Sprintf("%v: %s %d (coalesced %v) tells that it was %v", r.Object, r.Type, r.Revision,
				r.Coalesced, truth[i].Op))
		}
	}
	return wrong
}

// fits reports whether a record's type matches the operation.
func fits(op Op, r bus.Record) bool {
	switch r.Type {
	case snapshot:
		return op != Deleted
	case added:
		return op == Created || op == Updated && r.Coalesced
	case updated:
		return op == Updated
	case deleted:
		return op == Deleted || r.FinalStateUnknown
	}
	return false
}

// ends checks that the last record of an object has its last state. An object that came and went within a gap has none.
func ends(truth []Revision, all []bus.Record) []string {
	last := truth[len(truth)-1]
	if len(all) == 0 {
		if last.Op == Deleted {
			return nil // whether a gap covers it is asked elsewhere
		}
		return []string{fmt.Sprintf("%v exists at %d and nothing tells of it", last.Object, last.Revision)}
	}
	r := all[len(all)-1]
	if last.Op == Deleted && r.Type == deleted || last.Op != Deleted && r.Type != deleted && r.Revision == last.Revision {
		return nil
	}
	return []string{fmt.Sprintf("%v was last %v at %d; its last record is %s %d", last.Object, last.Op, last.Revision, r.Type, r.Revision)}
}

// Differ returns in which points two buses do not hold the same changes: each ID on both, with the same bytes.
func Differ(nameA string, a []bus.Record, nameB string, b []bus.Record) []string {
	var wrong []string
	inA, inB := payloads(a), payloads(b)
	for id, payload := range inA {
		switch other, there := inB[id]; {
		case !there:
			wrong = append(wrong, fmt.Sprintf("ID %s is on %s and not on %s", id, nameA, nameB))
		case !bytes.Equal(payload, other):
			wrong = append(wrong, fmt.Sprintf("ID %s: %s holds\n%s\nand %s holds\n%s", id, nameA, payload, nameB, other))
		}
	}
	for id := range inB {
		if _, there := inA[id]; !there {
			wrong = append(wrong, fmt.Sprintf("ID %s is on %s and not on %s", id, nameB, nameA))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func payloads(records []bus.Record) map[string][]byte {
	byID := make(map[string][]byte, len(records))
	for _, r := range records {
		if _, there := byID[r.ID]; !there {
			byID[r.ID] = r.Payload
		}
	}
	return byID
}
