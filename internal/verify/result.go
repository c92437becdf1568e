package verify

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/kubecdc/kubecdc/pkg/consumer"
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
