package verify

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Outcome is the result of a verification, or of one scope.
type Outcome string

// The outcomes.
const (
	OutcomeEqual       Outcome = "equal"
	OutcomeConsistent  Outcome = "consistent" // only the stream was checked
	OutcomeDifferent   Outcome = "different"
	OutcomeNotVerified Outcome = "not verified"
)

// Result is the result of [Run]. Its JSON form is the output of -o json, so members may be added but not renamed.
type Result struct {
	Outcome   Outcome        `json:"outcome"`
	Sink      string         `json:"sink"`
	Cluster   string         `json:"cluster,omitempty"`
	Bodies    bool           `json:"bodies"` // contents were compared, too
	Records   int64          `json:"records"`
	Resources []*ScopeResult `json:"resources"`
	Notes     []string       `json:"notes,omitempty"` // of what was not looked at
	Took      string         `json:"took"`
	Repair    *Repair        `json:"repair,omitempty"` // what was done about the differences; nil if nothing was to be done

	differing []Differing
}

// ScopeResult is the result of one resource, or of one namespace of it.
type ScopeResult struct {
	Outcome   Outcome `json:"outcome"`
	Resource  string  `json:"resource"`
	Namespace string  `json:"namespace,omitempty"`
	Reason    string  `json:"reason,omitempty"` // why it was not verified, with the remedy
	Note      string  `json:"note,omitempty"`   // what the outcome does not cover

	Watermark *WatermarkResult `json:"watermark,omitempty"` // compared at its position
	ListedAt  string           `json:"listedAt,omitempty"`  // the version of the list, if that is not the position

	Objects    int `json:"objects"` // in the cluster, or in the stream if only that was checked
	Equal      int `json:"equal"`
	Missing    int `json:"missing"`
	Ghost      int `json:"ghost"`
	Stale      int `json:"stale"`
	Different  int `json:"different"`
	OutOfOrder int `json:"outOfOrder"`
	Repeated   int `json:"repeated"`
	Malformed  int `json:"malformed"`
	Newer      int `json:"newer"`     // known to be newer than what they were compared with, so not compared
	Truncated  int `json:"truncated"` // contents that were emitted in part, so not compared
	Healed     int `json:"healed"`    // records out of order or malformed, behind which their objects were emitted again

	Repetitions     int    `json:"repetitions"`     // records that repeat an earlier one, as a restart may
	Snapshots       int    `json:"snapshots"`       // complete, with the right count and digest
	SnapshotsWrong  int    `json:"snapshotsWrong"`  // complete, with another count or digest
	WatermarksWrong uint64 `json:"watermarksWrong"` // whose digest is another one than that of the stream
	// WatermarkDiffers reports whether the watermark has another count or digest than the list of the cluster at its
	// position: the exporter knows other objects than the API server has.
	WatermarkDiffers bool `json:"watermarkDiffers"`

	Gaps        []GapResult  `json:"gaps,omitempty"`
	Differences []Difference `json:"differences,omitempty"` // the first ones of each kind

	keys map[consumer.Key]bool // of objects with differences, at most maxSuspects
}

// WatermarkResult identifies a watermark.
type WatermarkResult struct {
	Position string    `json:"position"`
	Epoch    string    `json:"epoch"`
	Sequence uint64    `json:"sequence"`
	At       time.Time `json:"at"`
	Age      string    `json:"age"` // when it was compared, by the clocks of the exporter and of this machine
}

// GapResult is lost history that the stream marks.
type GapResult struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
}

// Difference is one object that differs, or one record that is wrong.
type Difference struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Path      string `json:"path,omitempty"` // JSON Pointer of the first difference
	Stream    string `json:"stream,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
	Record    string `json:"record,omitempty"` // where a record is that is wrong
	ID        string `json:"id,omitempty"`     // of that record
}

// maxShown bounds the differences that are shown of one scope. Their numbers are not bounded.
const maxShown = 100

// addDifference counts a difference, and shows it if there are few.
func (r *ScopeResult) addDifference(d Difference) {
	*r.counterOf(d.Kind)++
	if len(r.keys) < maxSuspects && d.Name != "" {
		if r.keys == nil {
			r.keys = map[consumer.Key]bool{}
		}
		r.keys[consumer.Key{Namespace: d.Namespace, Name: d.Name}] = true
	}
	if len(r.Differences) < maxShown {
		r.Differences = append(r.Differences, d)
	}
}

func (r *ScopeResult) counterOf(k Kind) *int {
	switch k {
	case Missing:
		return &r.Missing
	case Ghost:
		return &r.Ghost
	case Stale:
		return &r.Stale
	case Different:
		return &r.Different
	case OutOfOrder:
		return &r.OutOfOrder
	case Repeated:
		return &r.Repeated
	case Malformed:
		return &r.Malformed
	default:
		return &r.Equal
	}
}

// certain returns the number of differences that the loss of the oldest records cannot explain.
func (r *ScopeResult) certain() int {
	return r.Ghost + r.Stale + r.Different + r.OutOfOrder + r.Repeated + r.Malformed
}

// decide sets the outcome. beginningLost is why the oldest records are not there; "" if they are.
func (r *ScopeResult) decide(without Outcome, beginningLost string) {
	switch {
	case r.certain() > 0 || r.WatermarkDiffers || beginningLost == "" && r.Missing > 0:
		r.Outcome, r.Reason = OutcomeDifferent, ""
	case beginningLost != "":
		r.Outcome, r.Reason = OutcomeNotVerified, beginningLost
	default:
		r.Outcome = without
	}
}

// combine sets the outcome of all: a difference is never hidden by a scope that was not verified, and the other way round
// only by a difference.
func (r *Result) combine(without Outcome) {
	r.Outcome = without
	if len(r.Resources) == 0 {
		r.Outcome = OutcomeNotVerified
	}
	for _, s := range r.Resources {
		switch {
		case s.Outcome == OutcomeDifferent:
			r.Outcome = OutcomeDifferent
		case s.Outcome == OutcomeNotVerified && r.Outcome != OutcomeDifferent:
			r.Outcome = OutcomeNotVerified
		}
	}
}

// WriteText writes the result for people.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.Resources {
		s.appendText(&b)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	fmt.Fprintf(&b, "%s: sink %s, %d records read in %s\n", r.Outcome, r.Sink, r.Records, r.Took)
	if r.Repair != nil {
		r.Repair.appendText(&b)
	}
	_, err := io.WriteString(w, b.String())
	if err == nil && r.Repair != nil && r.Repair.After != nil {
		err = r.Repair.After.WriteText(w)
	}
	return err
}

func (r *ScopeResult) appendText(b *strings.Builder) {
	name := r.Resource
	if r.Namespace != "" {
		name += " in " + r.Namespace
	}
	fmt.Fprintf(b, "%s: %s", name, r.Outcome)
	if r.Watermark != nil {
		fmt.Fprintf(b, " at %s, %s ago", r.Watermark.Position, r.Watermark.Age)
	}
	fmt.Fprintf(b, ", %d objects", r.Objects)
	for _, k := range []Kind{Missing, Ghost, Stale, Different, OutOfOrder, Repeated, Malformed} {
		if n := *r.counterOf(k); n > 0 {
			fmt.Fprintf(b, ", %d %s", n, k)
		}
	}
	for _, part := range []struct {
		n    int
		text string
	}{
		{r.Newer, "newer, not compared"}, {r.Truncated, "emitted in part, contents not compared"},
		{r.Healed, "wrong records healed"}, {r.Repetitions, "records repeated"}, {r.SnapshotsWrong, "snapshots with another count or digest"},
		{int(r.WatermarksWrong), "watermarks with another digest"},
	} {
		if part.n > 0 {
			fmt.Fprintf(b, ", %d %s", part.n, part.text)
		}
	}
	b.WriteByte('\n')
	for _, text := range []string{r.Reason, r.Note} {
		if text != "" {
			fmt.Fprintf(b, "  %s\n", text)
		}
	}
	if r.WatermarkDiffers {
		b.WriteString("  the watermark has another count or digest than the list at its position: the exporter knows other objects than the API server has\n")
	}
	for _, g := range r.Gaps {
		fmt.Fprintf(b, "  gap from %s to %s: %s\n", g.From, g.To, g.Reason)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(b, "  %s\n", d)
	}
}

// String returns one line.
func (d Difference) String() string {
	text := string(d.Kind) + " " + d.Name
	if d.Namespace != "" {
		text = string(d.Kind) + " " + d.Namespace + "/" + d.Name
	}
	for _, part := range []struct{ label, value string }{
		{"at", d.Path}, {"stream", d.Stream}, {"cluster", d.Cluster}, {"record", d.Record}, {"id", d.ID},
	} {
		if part.value != "" {
			text += " " + part.label + " " + part.value
		}
	}
	return strings.Map(func(r rune) rune { // a record may have anything as a name
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// Kind is how the state of an object in the stream differs from the cluster, or what is wrong with a record.
type Kind string

// The kinds of differences. The first five compare states.
const (
	Equal     Kind = "equal"
	Missing   Kind = "missing"   // the cluster has the object, the stream does not
	Ghost     Kind = "ghost"     // the stream has an object that does not exist
	Stale     Kind = "stale"     // the stream has an older version
	Different Kind = "different" // the stream has another object, version or content, which is not older

	OutOfOrder Kind = "out of order" // a record that comes after a newer one of its object, or after a watermark that covers it
	Repeated   Kind = "repeated"     // the newest record of an object in a lane repeats an older one
	Malformed  Kind = "malformed"    // the members of a record contradict each other, or its key is that of another object
)

// version is one version of an object. The zero value is no object.
type version struct {
	uid, resourceVersion string
	body                 string // hash; "" if bodies are not compared
}

func (v version) exists() bool { return v.uid != "" || v.resourceVersion != "" }

// Locations of the members that identify a version (RFC 6901).
const (
	pathUID     = "/metadata/uid"
	pathVersion = "/metadata/resourceVersion"

	pathAPIVersion = "/apiVersion" // does not identify one: a resource can be served in several
)

// compareVersions compares an object in the stream with the cluster. path is where they differ; "" if that is their
// contents, or if one of them does not exist.
func compareVersions(stream, cluster version) (kind Kind, path string) {
	switch {
	case !stream.exists() && !cluster.exists():
		return Equal, ""
	case !stream.exists():
		return Missing, ""
	case !cluster.exists():
		return Ghost, ""
	case stream.uid == cluster.uid && stream.resourceVersion == cluster.resourceVersion:
		if stream.body != "" && cluster.body != "" && stream.body != cluster.body {
			return Different, ""
		}
		return Equal, ""
	}
	if path = pathVersion; stream.uid != cluster.uid {
		path = pathUID
	}
	if isBefore(stream.resourceVersion, cluster.resourceVersion) {
		return Stale, path
	}
	return Different, path
}

// isBefore reports whether a version is known to be older than another one.
func isBefore(a, b string) bool {
	order, ordered := resourceversion.Compare(a, b)
	return ordered && order < 0
}

// isAfter reports whether a version is known to be newer than another one.
func isAfter(a, b string) bool { return isBefore(b, a) }

// finishScope decides the outcome of a scope that was compared.
func (v *verification) finishScope(s *scope) {
	r := s.result
	b := s.barrier
	r.Watermark = &WatermarkResult{Position: b.position, Epoch: b.Epoch, Sequence: b.Sequence, At: b.time, Age: max(0, time.Since(b.time)).Round(100 * time.Millisecond).String()}
	if after := v.After[v.tail.target]; v.AnyAge && len(after) > 0 && b.at < after[0] && r.Note == "" {
		r.Note = "no watermark came that was asked for: what was written behind this one is not seen"
	}
	if s.listedAt == "" && b.Algorithm == event.DigestAlgorithm {
		var d event.Digest
		for key, of := range s.listed {
			d.Add(key.Namespace, key.Name, of.uid, of.resourceVersion)
		}
		r.WatermarkDiffers = len(s.listed) != b.Count || d.String() != b.Digest
	}
	v.checkFrames(s)
	sortDifferences(r.Differences)
	r.decide(OutcomeEqual, s.lost)
}

// checkFrames counts the snapshots and watermarks of the stream with another digest, and finds out whether the oldest
// records of the scope are gone.
func (v *verification) checkFrames(s *scope) {
	covered := false // by a snapshot that the lanes reach back to
	whole := !slices.ContainsFunc(v.tail.lanes, func(l sinks.StoredLane) bool { return l.Replaces || l.Truncated })
	for _, f := range v.table.Snapshots() {
		switch {
		case f.Resource != s.key.Resource || f.Namespace != "" && f.Namespace != s.key.namespace && !v.streamOnly:
		case f.Verified:
			s.result.Snapshots++
			covered = covered || v.reachBackTo(s, s.ends[f.ID])
		case f.Ended && whole:
			s.result.SnapshotsWrong++
		}
	}
	for _, w := range v.table.Watermarks() {
		if whole && w.Resource == s.key.Resource && (w.Namespace == s.key.namespace || v.streamOnly) {
			s.result.WatermarksWrong += w.Different
		}
	}
	if i := slices.IndexFunc(v.tail.lanes, func(l sinks.StoredLane) bool { return l.Truncated }); i >= 0 && !covered {
		l := v.tail.lanes[i]
		s.lost = fmt.Sprintf("the records of %s before position %d are gone, and no whole snapshot of the resource is behind them, so objects "+
			"that did not change since may be missing; use compaction instead of a limit by age or size, or `resync` in the rule",
			describeLane(l), l.First)
	}
}

// reachBackTo reports whether all lanes have the records of a scope from a snapshot on: changes after it are in no lane
// before a record that was read at its position or earlier.
func (v *verification) reachBackTo(s *scope, position string) bool {
	return !slices.ContainsFunc(v.tail.lanes, func(l sinks.StoredLane) bool {
		oldest, any := s.oldest[l.Index]
		return l.Truncated && (!any || isAfter(oldest, position))
	})
}

func describeLane(l sinks.StoredLane) string {
	if l.Count > 1 {
		return fmt.Sprintf("%s/%d", l.Target, l.Index)
	}
	return l.Target
}

func sortDifferences(all []Difference) {
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Record, b.Record))
	})
}
