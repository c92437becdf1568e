package admin

import (
	"cmp"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Overview is the state of the exporter as people see it: on the status page, and in "exporter top", which reads it as JSON.
// Members may be added; none is renamed.
type Overview struct {
	Version     string         `json:"version"`
	Now         time.Time      `json:"now"`
	Cluster     string         `json:"cluster"`     // "" until it is known
	ClusterUID  string         `json:"clusterUID"`  // "" if it is not known
	Unchecked   string         `json:"unchecked"`   // why the identity of the cluster could not be checked; "" if it was
	Ready       bool           `json:"ready"`       // as /readyz reports
	Role        string         `json:"role"`        // active, taking over, or standby with the active exporter; "" without a replicated state
	Standby     bool           `json:"standby"`     // this process is a standby and has neither resources nor sinks
	Problems    []Problem      `json:"problems"`    // what is not well, those first that make it not ready
	APIServer   Stage          `json:"apiServer"`   // watch events
	Changes     Stage          `json:"changes"`     // that the resources made
	Journal     JournalView    `json:"journal"`     //
	Resources   []ResourceView `json:"resources"`   // failing ones first, then the busiest
	Sick        int            `json:"sick"`        // of Resources
	Sinks       []SinkView     `json:"sinks"`       // failing ones first
	DeadLetters uint64         `json:"deadLetters"` // since the process started
}

// Problem is one line of /readyz.
type Problem struct {
	Name     string     `json:"name"`
	Reason   string     `json:"reason"` // all of the following, one line
	Counts   bool       `json:"counts"` // it makes the exporter not ready
	Code     string     `json:"code"`
	Cause    string     `json:"cause"`
	Effect   string     `json:"effect"`
	Remedy   string     `json:"remedy"`
	Parts    int        `json:"parts"`              // resources or lanes that share it; 0 for the whole
	Since    *time.Time `json:"since,omitempty"`    // nil if not known
	Deadline *time.Time `json:"deadline,omitempty"` // when history begins to get lost; nil if none is
}

// Stage is one station of the pipeline.
type Stage struct {
	Rate   float64   `json:"rate"`   // a second, over the last ten seconds
	Points []float64 `json:"points"` // rates of the last two minutes, the newest last
}

// ResourceView is one watched resource.
type ResourceView struct {
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	Sick      bool      `json:"sick"`     // it has a line in Problems
	NotReady  bool      `json:"notReady"` // it makes the exporter not ready
	Reason    string    `json:"reason"`   // why it is not live, one line
	Known     int       `json:"known"`    // objects
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
	Name        string    `json:"name"`
	Kind        string    `json:"kind"`
	Sick        bool      `json:"sick"`     // a part of it fails
	NotReady    bool      `json:"notReady"` // none of it does, which makes the exporter not ready
	Code        string    `json:"code"`     // of what is wrong; "" if nothing is
	Reason      string    `json:"reason"`   // what is wrong, one line
	Backlog     uint64    `json:"backlog"`  // changes that wait
	LagSeconds  float64   `json:"lagSeconds"`
	Lanes       int       `json:"lanes"` // in memory
	Failing     int       `json:"failing"`
	Behind      int       `json:"behind"` // lanes that are read again from the journal
	Retries     uint64    `json:"retries"`
	DeadLetters uint64    `json:"deadLetters"` // since the process started
	LastAck     time.Time `json:"lastAck"`
	Stage
}

// buildOverview returns the content of a frame as viewers see it.
func (f *frame) buildOverview(version string) *Overview {
	o := &Overview{
		Version: version, Now: f.at.UTC(), Cluster: f.Cluster.Name, ClusterUID: f.Cluster.UID,
		Ready: f.isReady(), Standby: !f.isActive(), APIServer: f.stageOf(countEvents), Changes: f.stageOf(countChanges),
	}
	if f.Replica != nil {
		o.Role = f.Replica.describeRole()
	}
	all := f.problems()
	o.Problems = newProblems(all, o.Now)
	for _, c := range all {
		switch {
		case c.Code == condition.ClusterUnchecked:
			o.Unchecked = c.CauseText()
		case c.Component == "journal" && c.Severity == condition.NotReady:
			o.Journal.Trouble = c.CauseText()
		}
	}
	j := f.Journal
	o.Journal = JournalView{f.stageOf(countJournaled), j.Newest, j.RetainedBytes, j.MaxBytes, o.Journal.Trouble}
	for _, r := range f.Resources {
		v := f.resourceView(r)
		o.Resources = append(o.Resources, v)
		if v.Sick {
			o.Sick++
		}
	}
	slices.SortStableFunc(o.Resources, func(a, b ResourceView) int {
		return cmp.Or(compareFailingFirst(a.NotReady, b.NotReady), compareFailingFirst(a.Sick, b.Sick), cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Name, b.Name))
	})
	for _, k := range f.Sinks {
		o.Sinks = append(o.Sinks, f.sinkView(k))
		o.DeadLetters += k.DeadLetters
	}
	slices.SortStableFunc(o.Sinks, func(a, b SinkView) int { return compareFailingFirst(a.Sick, b.Sick) })
	return o
}

// newProblems returns what viewers see of the statuses that are not OK.
func newProblems(all []condition.Status, now time.Time) (problems []Problem) {
	for _, c := range all {
		if !c.OK() {
			problems = append(problems, newProblem(c, now))
		}
	}
	return problems
}

func newProblem(c condition.Status, now time.Time) Problem {
	p := Problem{
		Name: c.Name(), Reason: c.Text(now), Counts: c.Severity == condition.NotReady,
		Code: string(c.Code), Cause: c.CauseText(), Effect: c.EffectText(now), Remedy: c.Remedy, Parts: len(c.Members),
	}
	if !c.Since.IsZero() {
		p.Since = &c.Since
	}
	if !c.Deadline.IsZero() {
		p.Deadline = &c.Deadline
	}
	return p
}

func (f *frame) stageOf(counter string) Stage {
	s := f.series[counter]
	return Stage{s.Rate(), s.Points}
}

func (f *frame) resourceView(r ResourceStatus) ResourceView {
	return ResourceView{
		Name: r.Name, State: r.State, Since: r.Condition.Since, Sick: !r.Condition.OK(), NotReady: r.Condition.Severity == condition.NotReady,
		Reason: causeOf(r.Condition), Known: r.Known, LastEvent: r.LastEvent, Stage: f.stageOf(countResource + r.Name),
	}
}

func (f *frame) sinkView(k SinkStatus) SinkView {
	worst, failing := worstOf(k.Conditions), k.LanesBackingOff
	if worst.Severity == condition.NotReady {
		failing = k.Lanes
	}
	return SinkView{
		Name: k.Name, Kind: k.Kind, Sick: !worst.OK(), NotReady: worst.Severity == condition.NotReady, Code: string(worst.Code), Reason: causeOf(worst),
		Backlog: f.Journal.undeliveredOf(k), LagSeconds: k.lagAt(f.at).Round(time.Millisecond).Seconds(),
		Lanes: k.Lanes, Failing: failing, Behind: k.LanesBehind, Retries: k.Retries, DeadLetters: k.DeadLetters, LastAck: k.LastAck,
		Stage: f.stageOf(countSink + k.Name),
	}
}

// causeOf returns the cause of a problem; "" if OK.
func causeOf(c condition.Status) string {
	if c.OK() {
		return ""
	}
	return c.CauseText()
}

func compareFailingFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
