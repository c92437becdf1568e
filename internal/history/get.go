package history

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// namedUncertain is how many uncertain objects are named.
const namedUncertain = 20

// Doubt is what an answer about a moment lacks.
type Doubt struct {
	Unknown   []*Unknown // states that are not known then
	Uncertain []*uncertain
	Notes     []string // what else to know
}

// About returns the part of the doubt that concerns an object, or all with the empty parts of a key.
func (d *Doubt) About(k history.Key) (about Doubt) {
	for _, u := range d.Unknown {
		if u.concerns(k) {
			about.Unknown = append(about.Unknown, u)
		}
	}
	for _, u := range d.Uncertain {
		if overlap(u.Key, k) {
			about.Uncertain = append(about.Uncertain, u)
		}
	}
	return about
}

// Any reports whether a part of the answer is not known.
func (d *Doubt) Any() bool { return len(d.Unknown)+len(d.Uncertain) > 0 }

// Lines returns the doubt in sentences.
func (d *Doubt) Lines() (lines []string) {
	for _, u := range d.Unknown {
		lines = append(lines, u.String())
	}
	for i, u := range d.Uncertain {
		if i == namedUncertain {
			lines = append(lines, fmt.Sprintf("and %d objects more", len(d.Uncertain)-i))
			break
		}
		lines = append(lines, u.String())
	}
	return append(lines, d.Notes...)
}

func (d *Doubt) add(other Doubt) {
	for _, u := range other.Unknown {
		if !slices.ContainsFunc(d.Unknown, func(own *Unknown) bool { return own.String() == u.String() }) {
			d.Unknown = append(d.Unknown, u)
		}
	}
	d.Uncertain = append(d.Uncertain, other.Uncertain...)
	d.Notes = append(d.Notes, other.Notes...)
}

// Hides reports whether the state of an object is not known, because it lies in a gap.
func (d *Doubt) Hides(k history.Key) bool {
	return slices.ContainsFunc(d.Unknown, func(u *Unknown) bool { return !u.begin && u.concerns(k) })
}

// DoubtAt returns what is not known of a scope at a moment.
func (h *History) DoubtAt(ctx context.Context, s Scope, m Moment) (d Doubt, err error) {
	if d.Unknown, err = h.unknownAt(ctx, s, m); err != nil {
		return d, err
	}
	if d.Uncertain, err = h.uncertainAt(ctx, s, m); err != nil {
		return d, err
	}
	if newest := h.OrNewest(Moment{}).Time; m.Time.Sub(newest) > currentUntil {
		d.Notes = append(d.Notes, "the newest row is of "+formatTime(newest)+": what has changed since is not known if no exporter has run")
	}
	return d, nil
}

// Get passes the objects of a scope as they were at a moment. States in a gap are left out.
func (h *History) Get(ctx context.Context, s Scope, m Moment, pass func(*history.Row) error) (Doubt, error) {
	doubt, err := h.DoubtAt(ctx, s, m)
	if err != nil {
		return doubt, err
	}
	passed := false
	err = h.Objects(ctx, s, m, func(row *history.Row) error {
		if doubt.Hides(row.Key()) {
			return nil
		}
		passed = true
		return pass(row)
	})
	if err != nil {
		return doubt, err
	}
	if passed && s.Name != "" { // it is known, whatever else was
		doubt.Unknown = slices.DeleteFunc(doubt.Unknown, func(u *Unknown) bool { return u.begin })
	}
	return doubt, nil
}

// Objects passes the objects of a scope that existed at a moment as far as rows say, those in a gap too: see [Doubt.Hides].
func (h *History) Objects(ctx context.Context, s Scope, m Moment, pass func(*history.Row) error) error {
	for row, err := range h.objectsAt(ctx, s, m) {
		if err == nil {
			err = pass(row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Print writes the objects of a scope as they were at a moment.
func (h *History) Print(ctx context.Context, p *Printer, s Scope, m Moment) (Doubt, error) {
	doubt, err := h.Get(ctx, s, m, func(row *history.Row) error { return p.PrintObject(row, m.Time) })
	if err == nil {
		err = p.EndObjects()
	}
	return doubt, err
}

// split returns a scope for each type, so that each has its objects in order.
func (s Scope) split() (all []Scope) {
	for _, t := range s.Types {
		all = append(all, Scope{[]event.Resource{t}, s.Namespace, s.Name})
	}
	if all == nil {
		return []Scope{s}
	}
	return all
}

// OrNewest returns a moment, or that of the newest row for none.
func (h *History) OrNewest(m Moment) Moment {
	if files := h.snapshot.Manifest.Files; m.IsZero() && len(files) > 0 {
		m.Time = newestOf(files)
	}
	return m
}

// newestOf returns the time of the newest row of some files.
func newestOf(files []history.File) time.Time {
	return slices.MaxFunc(files, func(a, b history.File) int { return a.To.Compare(b.To) }).To
}

// Diff passes what differs between two moments, by object: an entry of the type added, deleted or updated for each. It is as
// complete as both states are, see [Doubt].
func (h *History) Diff(ctx context.Context, s Scope, from, to Moment, pass func(*Entry) error) (Doubt, error) {
	doubt, err := h.DoubtAt(ctx, s, from)
	if err != nil {
		return doubt, err
	}
	after, err := h.DoubtAt(ctx, s, to)
	if err != nil {
		return doubt, err
	}
	doubt.add(after)
	for _, t := range s.split() {
		if err := h.diffOne(ctx, t, from, to, doubt, pass); err != nil {
			return doubt, err
		}
	}
	return doubt, nil
}

func (h *History) diffOne(ctx context.Context, s Scope, from, to Moment, doubt Doubt, pass func(*Entry) error) error {
	was, stopWas := iter.Pull2(h.objectsAt(ctx, s, from))
	defer stopWas()
	is, stopIs := iter.Pull2(h.objectsAt(ctx, s, to))
	defer stopIs()
	before, err, more := was()
	after, errAfter, moreAfter := is()
	for more || moreAfter {
		if err == nil {
			err = errAfter
		}
		if err != nil {
			return err
		}
		var order int
		switch {
		case !more:
			order = 1
		case !moreAfter:
			order = -1
		default:
			order = before.Key().Compare(after.Key())
		}
		if e := compareStates(before, after, order); e != nil && !doubt.Hides(e.row.Key()) {
			if err := pass(&e.Entry); err != nil {
				return err
			}
		}
		if order <= 0 {
			before, err, more = was()
		}
		if order >= 0 {
			after, errAfter, moreAfter = is()
		}
	}
	return nil
}

// stateDifference is an entry, and the row that it is of.
type stateDifference struct {
	Entry
	row *history.Row
}

// compareStates returns what became of an object; nil for no difference. order says which of the states is there.
func compareStates(before, after *history.Row, order int) *stateDifference {
	var r logReader
	switch {
	case order < 0:
		return &stateDifference{*r.newEntry(before, "deleted"), before}
	case order > 0:
		return &stateDifference{*r.newEntry(after, "added"), after}
	case before.UID == after.UID && before.ResourceVersion == after.ResourceVersion:
		return nil
	}
	e := r.newEntry(after, "updated")
	e.Changed = between(before.Object, after.Object)
	return &stateDifference{*e, after}
}

// Blame returns the fields of one object in the order of the object, without what every write changes.
func (h *History) Blame(ctx context.Context, s Scope) ([]Blame, error) {
	b := blamer{}
	for _, match := range s.matches() {
		carried, err := h.carriedOver(ctx, match)
		if err != nil {
			return nil, err
		}
		for _, row := range carried {
			if err := b.addRow(row, s); err != nil {
				return nil, err
			}
		}
		for row, err := range h.snapshot.Rows(ctx, history.Query{Match: match}) {
			if err == nil {
				err = b.addRow(row, s)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	switch {
	case b.root == nil && b.end == history.Left:
		return nil, exit.With(exit.Unknown, fmt.Errorf("%s is %s", s, noLongerSelected))
	case b.root == nil:
		return nil, exit.With(exit.Runtime, fmt.Errorf("%s does not exist now: 'exporter history log' shows what became of it", s))
	}
	var all []Blame
	b.root.appendBlames(&all, "")
	return all, nil
}
