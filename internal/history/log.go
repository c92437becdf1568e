package history

import (
	"cmp"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
)

// Entry is one line of a log: a change, or an interval of which something is not known.
type Entry struct {
	Time            time.Time    `json:"time"`               // made then or before
	NotBefore       time.Time    `json:"notBefore,omitzero"` // and not before; zero if not known
	Type            string       `json:"type"`               // added, updated, deleted, left, found, missing, gap or attribution.gap
	Cluster         string       `json:"cluster"`
	Group           string       `json:"group"`
	Version         string       `json:"version,omitempty"`
	Resource        string       `json:"resource"`
	Kind            string       `json:"kind,omitempty"`
	Namespace       string       `json:"namespace,omitempty"`
	Name            string       `json:"name,omitempty"`
	UID             string       `json:"uid,omitempty"`
	ResourceVersion string       `json:"resourceVersion,omitempty"`
	User            string       `json:"user,omitempty"`      // authenticated
	Certainty       string       `json:"certainty,omitempty"` // of User
	Manager         string       `json:"manager,omitempty"`   // as the client named itself
	Changed         []Difference `json:"changed,omitempty"`
	Unknown         *Unknown     `json:"unknown,omitempty"`

	sequence int64
	object   string   // with LogOptions.Objects, of states
	words    []string // in place of Changed, with LogOptions.brief
}

// Difference is a place where an object changed. A value that was not there is absent.
type Difference struct {
	Path string          `json:"path"` // JSON Pointer (RFC 6901)
	From json.RawMessage `json:"from,omitempty"`
	To   json.RawMessage `json:"to,omitempty"`
}

// The types of entries that no record has.
const (
	found   = "found"   // a list showed another version: how it came about is not known
	missing = "missing" // a whole list lacked the object: it was deleted while nothing watched
)

// LogOptions choose the entries of a log.
type LogOptions struct {
	Scope
	Since, Until Moment // zero: all
	By           string // user or manager, with the wildcards of path.Match; "" for all
	Path         string // as spec.replicas, or a JSON Pointer; "" for all
	After        int64  // only rows with a higher sequence
	Objects      bool   // entries have the object, for the form [Audit]

	brief bool // entries have words in place of differences, which bounds them
}

// chunkRows is about how many rows are held to sort them by time, and chunkObjects how many with their objects.
const (
	chunkRows    = 200_000
	chunkObjects = 20_000
)

// authorWithin is how long after a change its author may come.
const authorWithin = 10 * time.Minute

// Log passes the entries of a scope, oldest first.
func (h *History) Log(ctx context.Context, o LogOptions, pass func(*Entry) error) error {
	gaps, err := h.logGaps(ctx, o)
	if err != nil {
		return err
	}
	from, to := o.Since.Time, o.Until.Time
	if to.IsZero() {
		to = endOfTime
	}
	for _, end := range h.chunkEnds(o, from, to) {
		var entries []*Entry
		if err := h.eachChange(ctx, o, from, end, func(e *Entry) { entries = append(entries, e) }); err != nil {
			return err
		}
		for len(gaps) > 0 && !gaps[0].Time.After(end) {
			entries, gaps = append(entries, gaps[0]), gaps[1:]
		}
		slices.SortStableFunc(entries, (*Entry).compare)
		for _, e := range entries {
			if err := pass(e); err != nil {
				return err
			}
		}
		from = end.Add(time.Nanosecond)
	}
	return nil
}

// compare orders entries by time. What a list lacked went with its end.
func (e *Entry) compare(o *Entry) int {
	return cmp.Or(e.Time.Compare(o.Time), cmp.Compare(e.sequence, o.sequence), cmp.Compare(e.Namespace, o.Namespace), cmp.Compare(e.Name, o.Name))
}

// Timeline returns the newest entries of a log in words, at most so many and the newest first, and how many older ones there
// are. However much has happened, it holds little: neither objects nor differences. It does not look at Path of the options.
func (h *History) Timeline(ctx context.Context, o LogOptions, most int) (lines []Line, older int, err error) {
	gaps, err := h.logGaps(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	o.brief, o.Path = true, ""
	var newest []*Entry
	keepNewest := func(n int) {
		slices.SortStableFunc(newest, func(a, b *Entry) int { return b.compare(a) })
		n = min(n, len(newest))
		older += len(newest) - n
		clear(newest[n:])
		newest = newest[:n]
	}
	add := func(e *Entry) {
		if newest = append(newest, e); len(newest) >= 2*most {
			keepNewest(most)
		}
	}
	for _, e := range gaps {
		add(e)
	}
	until := cmp.Or(o.Until.Time, endOfTime)
	if err := h.eachChange(ctx, o, o.Since.Time, until, add); err != nil {
		return nil, 0, err
	}
	keepNewest(most)
	for _, e := range newest {
		lines = append(lines, e.inWords())
	}
	return lines, older, nil
}

// chunkEnds divides an interval, so that each part has some chunkRows rows.
func (h *History) chunkEnds(o LogOptions, from, to time.Time) (ends []time.Time) {
	if o.Name == "" && o.After == 0 {
		rows, chunkRows := int64(0), int64(chunkRows)
		if o.Objects {
			chunkRows = chunkObjects
		}
		for _, f := range h.snapshot.Manifest.Files {
			if f.To.Before(from) || f.From.After(to) {
				continue
			}
			parts := f.Rows/chunkRows + 1
			if rows += f.Rows; rows <= chunkRows {
				continue
			}
			for i := range parts {
				ends = append(ends, f.From.Add(f.To.Sub(f.From)*time.Duration(i)/time.Duration(parts)))
			}
			rows = f.Rows / parts
		}
	}
	ends = slices.DeleteFunc(ends, func(t time.Time) bool { return !t.After(from) || !t.Before(to) })
	slices.SortFunc(ends, time.Time.Compare)
	return append(ends, to)
}

// logGaps returns the entries of what is unknown in the interval, by time.
func (h *History) logGaps(ctx context.Context, o LogOptions) (all []*Entry, err error) {
	q := history.Query{From: o.Since.Time, After: o.After}
	if !o.Until.Time.IsZero() {
		q.To = o.Until.Time.Add(maxLag) // the end of what is unknown
	}
	unknown, err := h.unknowns(ctx, o.Scope, q)
	if err != nil {
		return nil, err
	}
	for _, u := range unknown {
		e := &Entry{Time: u.gap.ObservedAt, Type: "gap", Cluster: u.cluster, Group: u.Resource.Group, Resource: u.Resource.Resource,
			Namespace: u.Namespace, ResourceVersion: u.ToVersion, Unknown: u, sequence: u.gap.Sequence}
		if u.begin || u.gap.Sequence <= o.After || !o.has(e) {
			continue
		}
		if err := h.boundGap(ctx, u); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b *Entry) int { return a.Time.Compare(b.Time) })
	return all, nil
}

// has reports whether an entry is in the interval of the log.
func (o *LogOptions) has(e *Entry) bool {
	for _, m := range []struct {
		Moment
		isBefore bool
	}{{o.Since, true}, {o.Until, false}} {
		switch {
		case m.IsZero():
		case m.Version != "" && m.isBefore && isHigher(m.Version, e.ResourceVersion), m.Version != "" && !m.isBefore && isHigher(e.ResourceVersion, m.Version):
			return false
		case m.Version == "" && m.isBefore && e.Time.Before(m.Time), m.Version == "" && !m.isBefore && e.Time.After(m.Time):
			return false
		}
	}
	return true
}

// eachChange passes the changes between two times, by object.
func (h *History) eachChange(ctx context.Context, o LogOptions, from, to time.Time, pass func(*Entry)) error {
	for _, match := range o.matches() {
		r := logReader{single: o.Name != "" && o.After == 0, after: o.After, objects: o.Objects, brief: o.brief}
		r.pass = func(e *Entry) {
			if e.sequence > o.After && !e.Time.Before(from) && !e.Time.After(to) && o.has(e) && o.isBy(e) && o.isAt(e) {
				pass(e)
			}
		}
		q := history.Query{Match: match, After: o.After, WithoutObjects: !r.single && !o.Objects}
		if !r.single {
			q.From, q.To = from, to.Add(authorWithin)
		}
		for row, err := range h.snapshot.Rows(ctx, q) {
			if err != nil {
				return err
			}
			r.addRow(row)
		}
		r.endObject()
	}
	return nil
}

func (o *LogOptions) isBy(e *Entry) bool {
	if o.By == "" {
		return true
	}
	for _, who := range []string{e.User, e.Manager} {
		if ok, err := path.Match(o.By, who); ok || err != nil && o.By == who {
			return true
		}
	}
	return false
}

// isAt reports whether the entry changed a value at the path, above it or below it.
func (o *LogOptions) isAt(e *Entry) bool {
	if o.Path == "" {
		return true
	}
	wanted := o.Path
	if strings.HasPrefix(wanted, "/") {
		wanted = field.PathOf(wanted)
	}
	return slices.ContainsFunc(e.Changed, func(d Difference) bool {
		changed := field.PathOf(d.Path)
		return isBelow(changed, wanted) || isBelow(wanted, changed)
	})
}

func isBelow(path, above string) bool {
	rest, ok := strings.CutPrefix(path, above)
	return ok && (rest == "" || above == "" || rest[0] == '.' || rest[0] == '[')
}

// logReader makes entries of rows by object.
type logReader struct {
	single  bool  // rows have objects, and all of the object are there
	after   int64 // entries up to this sequence were passed before
	objects bool  // entries have them, and are what happened, in its order: without replays of the past
	brief   bool  // see LogOptions
	pass    func(*Entry)
	listing listing
	key     history.Key
	entries []*Entry     // of the current object
	last    *history.Row // state of the current object, or nil
}

// briefEntries bounds the entries of an object that are held with LogOptions.brief: then its oldest ones are passed.
const briefEntries = 20_000

func (r *logReader) addRow(row *history.Row) {
	if key := row.Key(); key != r.key {
		r.endObject()
		r.listing.enter(key)
		r.key = key
	}
	switch {
	case row.Name == "":
		r.listing.addControl(&row.Facts)
		if row.Type == "attribution.gap" {
			r.addAttributionGap(row)
		}
	case row.Type == "attributed":
		r.attribute(&row.Facts)
	case row.IsState():
		r.addState(row)
	case row.Type == "replayed" && !r.objects && !slices.ContainsFunc(r.entries, isOf(&row.Facts)):
		r.addEntry(r.newEntry(row, "updated"))
	}
}

// isOf returns whether an entry is of the version of a row.
func isOf(row *history.Facts) func(*Entry) bool {
	return func(e *Entry) bool { return e.UID == row.UID && e.ResourceVersion == row.ResourceVersion }
}

func (r *logReader) attribute(row *history.Facts) {
	is, isNew := isOf(row), false
	for _, e := range r.entries {
		if is(e) {
			e.User, e.Certainty = row.User, row.Attribution
			isNew = isNew || e.sequence > r.after
		}
	}
	if r.after > 0 && !isNew {
		r.addEntry(r.newEntry(&history.Row{Facts: *row}, row.Type))
	}
}

func (r *logReader) addState(row *history.Row) {
	kind := row.Type
	if kind == "snapshot" || kind == "sync" {
		kind = found
	}
	known := r.last != nil && !r.last.IsEnd() && r.last.UID == row.UID && r.last.ResourceVersion == row.ResourceVersion
	if kind != found || !known && (r.last != nil || r.single || r.objects) {
		e := r.newEntry(row, kind)
		if r.single && len(e.Changed) == 0 && r.last != nil && r.last.Object != "" && row.Object != "" && kind != "added" {
			e.Changed = between(r.last.Object, row.Object)
		}
		r.addEntry(e)
	}
	r.last = row
}

// addEntry adds an entry of the current object.
func (r *logReader) addEntry(e *Entry) {
	if r.brief {
		e.words, e.Changed = describeChanges(e.Changed, briefChanges), nil
		if len(r.entries) == briefEntries {
			r.passEntries(briefEntries / 2)
		}
	}
	r.entries = append(r.entries, e)
}

// passEntries passes the first entries, to which no author will come.
func (r *logReader) passEntries(n int) {
	for _, e := range r.entries[:n] {
		r.pass(e)
	}
	r.entries = slices.Delete(r.entries, 0, n)
}

// endObject passes the entries of the current object.
func (r *logReader) endObject() {
	r.addMissing()
	r.passEntries(len(r.entries))
	r.last = nil
}

// addMissing adds that the current object was deleted while nothing watched, if a whole list says so.
func (r *logReader) addMissing() {
	if r.last == nil || r.last.IsEnd() || r.key.Name == "" {
		return
	}
	for _, w := range r.listing.whole {
		if one := (&listing{whole: []wholeList{w}}); one.lacks(r.last, nil, w.position) {
			e := r.newEntry(r.last, missing)
			e.NotBefore, e.Time, e.ResourceVersion, e.sequence = r.last.Time(), w.at, w.position, w.end
			e.User, e.Manager, e.Certainty, e.Changed, e.object = "", "", "", nil, ""
			r.addEntry(e)
			return
		}
	}
}

func (r *logReader) newEntry(row *history.Row, kind string) *Entry {
	e := &Entry{Time: row.Time(), NotBefore: row.NotBefore, Type: kind, Cluster: row.Cluster, Group: row.Group, Version: row.Version,
		Resource: row.Resource, Kind: row.Kind, Namespace: row.Namespace, Name: row.Name, UID: row.UID, ResourceVersion: row.ResourceVersion,
		User: row.User, Certainty: row.Attribution, Manager: row.Manager, sequence: row.Sequence}
	if r.objects {
		e.object = strings.Clone(row.Object)
	}
	for _, d := range row.Changed {
		if !field.IsBookkeeping(d.Path) {
			e.Changed = append(e.Changed, Difference{d.Path, json.RawMessage(d.From), json.RawMessage(d.To)})
		}
	}
	return e
}

func (r *logReader) addAttributionGap(row *history.Row) {
	e := r.newEntry(row, row.Type)
	u := &Unknown{Resource: event.Resource{Group: row.Group, Resource: row.Resource}, Reason: row.GapReason}
	u.From, _ = time.Parse(time.RFC3339, row.GapFrom)
	u.To, _ = time.Parse(time.RFC3339, row.GapTo)
	e.Unknown = u
	r.addEntry(e)
}

// between returns the differences between two objects, without what every write changes.
func between(before, after string) (all []Difference) {
	for _, d := range diff.Between([]byte(before), []byte(after)) {
		if !field.IsBookkeeping(d.Path) {
			all = append(all, Difference{d.Path, d.From, d.To})
		}
	}
	return all
}
