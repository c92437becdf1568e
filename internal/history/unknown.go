package history

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

const (
	maxLag       = 6 * time.Hour    // how long after a change a row of it is looked for
	exactWithin  = 10 * time.Second // a change with a time known to this counts as made at its end
	currentUntil = 10 * time.Minute // without a row the history may have ended
)

// Unknown is an interval in which the states of a resource are not known, its ends excluded.
type Unknown struct {
	Resource    event.Resource `json:"-"`
	Namespace   string         `json:"namespace,omitempty"` // "" for all
	From        time.Time      `json:"from,omitzero"`       // zero: since ever
	To          time.Time      `json:"to,omitzero"`         // zero: until now
	FromVersion string         `json:"fromVersion,omitempty"`
	ToVersion   string         `json:"toVersion,omitempty"`
	Reason      string         `json:"reason"`

	cluster string
	begin   bool // before the first whole list: objects that rows were about are known
	gap     history.Facts
}

// String says what is unknown, in a sentence.
func (u *Unknown) String() string {
	span := "unknown"
	switch {
	case !u.From.IsZero() && !u.To.IsZero():
		span += " between " + formatTime(u.From) + " and " + formatTime(u.To)
	case !u.From.IsZero():
		span += " since " + formatTime(u.From)
	case !u.To.IsZero():
		span += " before " + formatTime(u.To)
	}
	what := cmp.Or(u.Resource.String(), "everything")
	if u.Namespace != "" {
		what += " in namespace " + u.Namespace
	}
	return what + ": " + span + ": " + u.Reason
}

// covers reports whether a moment is in the interval.
func (u *Unknown) covers(m Moment) bool {
	if m.Version != "" {
		return isHigher(m.Version, u.FromVersion) && (u.To.IsZero() || isHigher(u.ToVersion, m.Version))
	}
	return m.Time.After(u.From) && (u.To.IsZero() || m.Time.Before(u.To))
}

// concerns reports whether the interval is about an object, or about some of those with the empty parts of a key.
func (u *Unknown) concerns(k history.Key) bool {
	own := history.Key{Cluster: u.cluster, Group: u.Resource.Group, Resource: u.Resource.Resource, Namespace: u.Namespace}
	return u.Resource.Resource == "" || overlap(own, k)
}

// overlap reports whether an object can have both keys; an empty cluster, namespace or name is any.
func overlap(a, b history.Key) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return a.Group == b.Group && a.Resource == b.Resource && same(a.Cluster, b.Cluster) && same(a.Namespace, b.Namespace) && same(a.Name, b.Name)
}

// unknowns returns what is not known of a scope, by resource and in the order of the stream, by the control records that a
// query has.
func (h *History) unknowns(ctx context.Context, s Scope, q history.Query) (all []*Unknown, err error) {
	for _, match := range s.matches() {
		q.Match, q.WithoutObjects, q.Types = match, true, controlTypes
		var a account
		for row, err := range h.snapshot.Rows(ctx, q) {
			if err != nil {
				return nil, err
			}
			a.addControl(row, h.startsLate())
		}
		if match.Resource != "" && a.resource.Resource == "" && !h.startsLate() {
			a.all = append(a.all, &Unknown{Resource: event.Resource{Group: match.Group, Resource: match.Resource}, begin: true,
				Reason: "the history has no whole list of it"})
		}
		all = append(all, a.all...)
	}
	if h.startsLate() {
		all = append(all, h.deleted(s)...)
	}
	return all, nil
}

// startsLate reports whether older files were deleted: then the first one has what existed at its start.
func (h *History) startsLate() bool {
	first := h.snapshot.Manifest.Files
	return len(first) > 0 && (first[0].Alive > 0 || first[0].FirstSequence > 1)
}

// deleted returns that nothing is known before the first file.
func (h *History) deleted(s Scope) (all []*Unknown) {
	begin, _ := h.snapshot.Manifest.Begin()
	for _, t := range append(slices.Clone(s.Types), event.Resource{})[:max(1, len(s.Types))] {
		all = append(all, &Unknown{Resource: t, To: begin, begin: true, Reason: "older files were deleted"})
	}
	return all
}

// account finds the intervals of the resources whose control records it gets.
type account struct {
	all      []*Unknown
	cluster  string
	resource event.Resource
	first    *Unknown   // before the first whole list of the resource
	open     []*Unknown // gaps that end with the next whole list
}

func (a *account) addControl(row *history.Row, startsLate bool) {
	of := event.Resource{Group: row.Group, Resource: row.Resource}
	if of != a.resource || row.Cluster != a.cluster {
		a.cluster, a.resource, a.first, a.open = row.Cluster, of, nil, nil
		if !startsLate {
			a.first = a.add(row, "the history begins there")
			a.first.begin, a.first.Namespace = true, ""
		}
	}
	switch row.Type {
	case "gap":
		u := a.add(row, row.GapReason)
		u.To, u.FromVersion, u.ToVersion = row.ObservedAt, row.GapFrom, row.GapTo
		if row.GapFrom == "" { // a list of everything follows
			u.To = time.Time{}
			a.open = append(a.open, u)
		}
	case "snapshot.end":
		for _, u := range append(a.open, a.first) {
			if u != nil && u.To.IsZero() && (u.Namespace == row.Namespace || row.Namespace == "" || u.begin) {
				u.To, u.ToVersion = row.ObservedAt, row.ResourceVersion
			}
		}
	}
}

func (a *account) add(row *history.Row, reason string) *Unknown {
	u := &Unknown{cluster: row.Cluster, Resource: a.resource, Namespace: row.Namespace, Reason: reason, gap: row.Facts}
	a.all = append(a.all, u)
	return u
}

// isFarFrom reports whether a gap cannot cover a moment, without reading rows: it ended long before, or began after another
// gap of the same resource that is later than the moment.
func (u *Unknown) isFarFrom(m Moment, all []*Unknown) bool {
	if m.Version != "" {
		return u.FromVersion != "" && !u.covers(m)
	}
	return !u.To.IsZero() && m.Time.After(u.To.Add(maxLag)) || slices.ContainsFunc(all, func(o *Unknown) bool {
		return !o.begin && o.Resource == u.Resource && o.Namespace == u.Namespace && o.cluster == u.cluster &&
			o.gap.Sequence < u.gap.Sequence && o.gap.ObservedAt.After(m.Time)
	})
}

// boundGap finds the times of a gap: a row that was read before it says since when nothing is known, and the list that
// follows says until when.
func (h *History) boundGap(ctx context.Context, u *Unknown) error {
	own := history.Match{Cluster: u.cluster, Group: u.Resource.Group, Resource: u.Resource.Resource}
	all := history.Match{Cluster: u.cluster}
	observed := u.gap.ObservedAt
	for _, q := range []history.Query{{Match: all, From: observed.Add(-maxLag), To: observed}, {Match: own, To: observed}} {
		q.WithoutObjects = true
		for row, err := range h.snapshot.Rows(ctx, q) {
			if err != nil {
				return err
			}
			if row.Sequence < u.gap.Sequence {
				u.recordBefore(&row.Facts)
			}
		}
		if !u.From.IsZero() {
			break
		}
	}
	for row, err := range h.snapshot.Rows(ctx, history.Query{Match: own, From: observed, To: observed.Add(maxLag), WithoutObjects: true}) {
		if err != nil {
			return err
		}
		isListed := row.IsState() && row.Sequence > u.gap.Sequence && !isHigher(row.ResourceVersion, u.gap.GapTo)
		if isListed && !u.To.IsZero() && row.Type != "snapshot" && row.Type != "sync" && row.Time().After(u.To) {
			u.To = row.Time()
		}
	}
	return nil
}

// recordBefore moves the beginning of a gap to the time of a row that was read before it. Versions of other resources are
// compared where the API server has one sequence for both.
func (u *Unknown) recordBefore(row *history.Facts) {
	same := row.Group == u.Resource.Group && row.Resource == u.Resource.Resource
	complete := row.IsState() && row.Type != "snapshot" && row.Type != "sync" || row.Type == "snapshot.end"
	if !complete || !same && (u.gap.GapFrom == "" || !isOfServer(row.Group) || !isOfServer(u.Resource.Group)) {
		return
	}
	if u.gap.GapFrom != "" && isHigher(row.ResourceVersion, u.gap.GapFrom) {
		return
	}
	if u.gap.GapFrom == "" {
		u.FromVersion = highest(u.FromVersion, row.ResourceVersion)
	}
	at := row.NotBefore
	if at.IsZero() && same {
		at = row.Time()
	}
	if at.After(u.From) {
		u.From = at
	}
}

// isOfServer reports whether a group is in the store of the API server itself.
func isOfServer(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// unknownAt returns what is not known of a scope at a moment.
func (h *History) unknownAt(ctx context.Context, s Scope, m Moment) (all []*Unknown, err error) {
	all, err = h.unknowns(ctx, s, history.Query{})
	if err != nil {
		return nil, err
	}
	candidates := slices.DeleteFunc(slices.Clone(all), func(u *Unknown) bool { return !u.begin && u.isFarFrom(m, all) })
	for _, u := range candidates {
		if u.begin {
			continue
		}
		if err := h.boundGap(ctx, u); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(candidates, func(u *Unknown) bool { return !u.covers(m) }), nil
}

// uncertain is an object that may have been in another state, why, and when.
type uncertain struct {
	history.Key
	why         string
	from, until time.Time // until excluded; zero: for ever
}

// leftSince returns that the states of an object are not known from a row of the type left on.
func leftSince(row *history.Row) *uncertain {
	return &uncertain{row.Key(), noLongerSelected + " since " + formatTime(row.Time()), row.Time(), time.Time{}}
}

// uncertainUntil returns since when an object may have had the state of a row; nil if that is exact.
func uncertainUntil(row *history.Row) *uncertain {
	if !row.IsState() || row.NotBefore.IsZero() || row.Time().Sub(row.NotBefore) < exactWithin {
		return nil
	}
	why := fmt.Sprintf("%s between %s and %s, and shown as before", row.Type, formatTime(row.NotBefore), formatTime(row.Time()))
	return &uncertain{row.Key(), why, row.NotBefore, row.Time()}
}

func (u *uncertain) String() string { return objectName(&u.Key) + ": " + u.why }

// uncertainAt returns the objects of a scope that may have been in another state, because the time of a change is not known
// better, or because edited rules no longer selected them.
func (h *History) uncertainAt(ctx context.Context, s Scope, m Moment) (all []*uncertain, err error) {
	left, err := h.leftAt(ctx, s, m)
	for _, row := range left {
		all = append(all, leftSince(row))
	}
	if err != nil || m.Version != "" {
		return all, err
	}
	for _, match := range s.matches() {
		q := history.Query{Match: match, From: m.Time, To: m.Time.Add(maxLag), WithoutObjects: true}
		for row, err := range h.snapshot.Rows(ctx, q) {
			if err != nil {
				return nil, err
			}
			if u := uncertainUntil(row); u != nil && !u.from.After(m.Time) && m.Time.Before(u.until) {
				all = append(all, u)
			}
		}
	}
	return all, nil
}

// leftAt returns the last rows of the objects of a scope that edited rules no longer selected at a moment.
func (h *History) leftAt(ctx context.Context, s Scope, m Moment) ([]*history.Row, error) {
	left := map[history.Key]*history.Row{}
	for _, kind := range []string{history.Left, "deleted"} {
		for _, match := range s.matches() {
			for row, err := range h.snapshot.Rows(ctx, history.Query{Match: match, To: m.Time, Types: []string{kind}, WithoutObjects: true}) {
				if err != nil {
					return nil, err
				}
				switch was := left[row.Key()]; {
				case m.Version != "" && isHigher(row.ResourceVersion, m.Version):
				case kind == history.Left:
					left[row.Key()] = row
				case was != nil && was.Sequence < row.Sequence: // selected again, and deleted
					delete(left, row.Key())
				}
			}
		}
		if len(left) == 0 {
			return nil, nil
		}
	}
	for row, err := range h.objectsAt(ctx, s, m) {
		if err != nil {
			return nil, err
		}
		delete(left, row.Key())
	}
	return slices.SortedFunc(maps.Values(left), func(a, b *history.Row) int { return a.Compare(&b.Facts) }), nil
}

// objectName names the object of a key, or the resource of one without a name.
func objectName(k *history.Key) string {
	name := (event.Resource{Group: k.Group, Resource: k.Resource}).String()
	switch {
	case k.Name == "" && k.Namespace == "":
		return name
	case k.Namespace == "":
		return name + " " + k.Name
	}
	return name + " " + k.Namespace + "/" + k.Name
}
