package admin

import (
	"cmp"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// Overview is the state of the exporter as people see it: on the status page, and in "exporter top", which reads it as JSON.
// Members may be added; none is renamed.
type Overview struct {
	Version     string             `json:"version"`
	Now         time.Time          `json:"now"`
	Cluster     string             `json:"cluster"`     // "" until it is known
	ClusterUID  string             `json:"clusterUID"`  // "" if it is not known
	Unchecked   string             `json:"unchecked"`   // why the identity of the cluster could not be checked; "" if it was
	Ready       bool               `json:"ready"`       // as /readyz reports
	Role        string             `json:"role"`        // active, taking over, or standby with the active exporter; "" without a replicated state
	Standby     bool               `json:"standby"`     // this process is a standby and has neither resources nor sinks
	Problems    []condition.Report `json:"problems"`    // what is not well, those first that make it not ready
	APIServer   Stage              `json:"apiServer"`   // watch events
	Changes     Stage              `json:"changes"`     // that the resources made
	Journal     JournalView        `json:"journal"`     //
	Resources   []ResourceView     `json:"resources"`   // failing ones first, then the busiest
	Sick        int                `json:"sick"`        // of Resources
	Sinks       []SinkView         `json:"sinks"`       // failing ones first
	DeadLetters uint64             `json:"deadLetters"` // since the process started
}

// Stage is one station of the pipeline.
type Stage struct {
	Rate   float64   `json:"rate"`   // a second, over the last ten seconds
	Points []float64 `json:"points"` // rates of the last two minutes, the newest last

	count uint64 // of the counter when the newest point was taken
}

// Health is the worst of what is wrong with a resource or a sink.
type Health struct {
	Sick     bool   `json:"sick"`     // it has a line in Problems
	NotReady bool   `json:"notReady"` // it makes the exporter not ready
	Reason   string `json:"reason"`   // one line

	severity condition.Severity
}

// ResourceView is one watched resource.
type ResourceView struct {
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	Health              // why it is not live
	Known     int       `json:"known"` // objects
	LastEvent time.Time `json:"lastEvent"`
	Stage
}

// JournalView is the journal.
type JournalView struct {
	Stage
	Newest        uint64 `json:"newest"`
	RetainedBytes int64  `json:"retainedBytes"`
	MaxBytes      int64  `json:"maxBytes"`
	Trouble       string `json:"trouble"` // why it does not take everything, one line; "" when it does
}

// SinkView is one destination.
type SinkView struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Health
	Code        condition.Code `json:"code"`    // of what is wrong; "" if nothing is
	Backlog     uint64         `json:"backlog"` // changes that wait
	LagSeconds  float64        `json:"lagSeconds"`
	Lanes       int            `json:"lanes"` // in memory
	Failing     int            `json:"failing"`
	Behind      int            `json:"behind"` // lanes that are read again from the journal
	Retries     uint64         `json:"retries"`
	DeadLetters uint64         `json:"deadLetters"` // since the process started
	LastAck     time.Time      `json:"lastAck"`
	Stage
}

// buildOverview returns the content of a frame as viewers see it.
func (f *frame) buildOverview(version string) *Overview {
	o := &Overview{
		Version: version, Now: f.at.UTC(), Cluster: f.Cluster.Name, ClusterUID: f.Cluster.UID,
		Ready: f.isReady(), Standby: !f.isActive(), APIServer: f.stages[countEvents], Changes: f.stages[countChanges],
	}
	if f.Replica != nil {
		o.Role = f.Replica.describeRole()
	}
	o.Problems, o.Unchecked = condition.Reports(f.Conditions, o.Now), worstOf(f.conditionsOf("cluster")).CauseText()
	j := f.Journal
	o.Journal = JournalView{f.stages[countJournaled], j.Newest, j.RetainedBytes, j.MaxBytes, ""}
	if worst := worstOf(f.conditionsOf("journal")); worst.Severity == condition.NotReady {
		o.Journal.Trouble = worst.CauseText()
	}
	for _, r := range f.Resources {
		v := f.resourceView(r)
		o.Resources = append(o.Resources, v)
		if v.Sick {
			o.Sick++
		}
	}
	slices.SortStableFunc(o.Resources, func(a, b ResourceView) int {
		return cmp.Or(cmp.Compare(b.severity, a.severity), cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Name, b.Name))
	})
	for _, k := range f.Sinks {
		o.Sinks = append(o.Sinks, f.sinkView(k))
		o.DeadLetters += k.DeadLetters
	}
	slices.SortStableFunc(o.Sinks, func(a, b SinkView) int { return cmp.Compare(b.severity, a.severity) })
	return o
}

func healthOf(c condition.Status) Health {
	return Health{!c.OK(), c.Severity == condition.NotReady, c.CauseText(), c.Severity}
}

func (f *frame) resourceView(r source.Status) ResourceView {
	return ResourceView{
		Name: r.Scope, State: string(r.State), Since: r.Condition.Since, Health: healthOf(r.Condition), Known: r.Known, LastEvent: r.LastEvent, Stage: f.stages[countResource+r.Scope],
	}
}

func (f *frame) sinkView(k SinkStatus) SinkView {
	worst, failing := worstOf(f.conditionsOf("sink/"+k.Name)), k.LanesFailing
	if worst.Severity == condition.NotReady {
		failing = k.Lanes
	}
	return SinkView{
		Name: k.Name, Kind: k.Kind, Health: healthOf(worst), Code: worst.Code,
		Backlog: k.Backlog, LagSeconds: k.Lag.Round(time.Millisecond).Seconds(),
		Lanes: k.Lanes, Failing: failing, Behind: k.LanesLagging, Retries: k.Retries, DeadLetters: k.DeadLetters, LastAck: k.LastAck,
		Stage: f.stages[countSink+k.Name],
	}
}

// headline is the state of the exporter in a few words, for the top of a page, its title and its icon.
type headline struct {
	Class string // of the style sheet
	Text  string
	sign  string
	shape string // of the icon: not only its color differs
}

var (
	headlineGood = headline{"good", "Ready", "✓", `<circle cx="8" cy="8" r="8" fill="#116329"/><path d="m4 8 3 3 5-6"`}
	headlineWait = headline{"wait", "Ready, with warnings", "!", `<path d="M8 0 16 16H0z" fill="#9a6700"/><path d="M8 5v5m0 2v2"`}
	headlineBad  = headline{"bad", "Not ready", "✗", `<path d="M0 0h16v16H0z" fill="#a40e26"/><path d="m4 4 8 8m0-8-8 8"`}
)

// Headline returns the state as a whole.
func (d *pageData) Headline() headline {
	switch {
	case !d.Ready:
		return headlineBad
	case len(d.Problems) > 0:
		return headlineWait
	}
	return headlineGood
}

// LostIcon is the image while the exporter does not answer.
func (headline) LostIcon() template.URL { return headlineBad.Icon() }

// Icon is an image for the tab of a browser.
func (h headline) Icon() template.URL {
	const image = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">%s fill="none" stroke="#fff" stroke-width="2"/></svg>`
	return template.URL("data:image/svg+xml," + url.PathEscape(fmt.Sprintf(image, h.shape))) //nolint:gosec // it is a constant
}

// Announcement names the state and what is wrong: a text that changes only with these, for screen readers.
func (d *pageData) Announcement() string {
	var names []string
	for _, p := range d.Problems {
		names = append(names, p.Name+" "+string(p.Code))
	}
	text := d.Headline().Text
	if len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	return text
}

// Title is what a browser shows in its tab.
func (d *pageData) Title() string {
	h := d.Headline()
	title := h.sign + " " + h.Text
	if d.Name != "" {
		title += " · " + d.Name
	}
	return title + " · kubecdc"
}
