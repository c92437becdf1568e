package history

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// replayBytes bounds the objects of the steps that a replay passes at once.
const replayBytes = 16 << 20

// replayed are the types of the rows that a replay has.
var replayed = []string{"added", "updated", "deleted", history.Left, "snapshot", "sync", "snapshot.end"}

// oldTypes are those of rows about an object that has not changed.
var oldTypes = []string{history.Left, "snapshot", "sync"}

// Step is what happens next in a replay: a row, without Changed, or a change of what is known.
type Step struct {
	Time  time.Time
	Row   *history.Row
	Begun int64  // of a row that ends a list: sequence of its begin; objects without a row since then do not exist
	Doubt *Doubt // if Row is nil: what is not known from then on
}

// Positions returns the newest version of each type at a moment that a row of no existing object has: of deletes and lists;
// and the last one of these rows.
func Positions(ctx context.Context, h *History, m Moment) (all map[string]string, last history.Facts, err error) {
	all = map[string]string{}
	q := history.Query{To: m.Time, Types: []string{"snapshot.end", "deleted"}, WithoutObjects: true}
	if m.Version != "" { // a delete that a list found has the version of the object before it
		q.Types = q.Types[:1]
	}
	for row, err := range h.snapshot.Rows(ctx, q) {
		if err != nil {
			return nil, last, err
		}
		if !m.includes(&row.Facts, row.ResourceVersion) {
			continue
		}
		of := event.Resource{Group: row.Group, Resource: row.Resource}.String()
		if all[of] = highest(all[of], row.ResourceVersion); row.Sequence > last.Sequence {
			last = row.Facts
		}
	}
	return all, last, nil
}

// Replay passes what happened in a cluster ("" for all) after a moment and up to another one: some steps at a time, which
// the caller may keep. The rows of a resource come in the order of its versions, which is that of the stream for an object
// only: each at its time, or earlier if a higher version is of an earlier time, as that of a change is only known as a
// bound. So behind the steps of a time the state of a resource is that of its highest version. In a gap, a row of an object
// may come after one with a higher sequence: the caller leaves it out. doubt is that of the first moment, whose Time is set
// in any case; the last step has the doubt of the last one.
func Replay(ctx context.Context, h *History, cluster string, doubt Doubt, from, to Moment) iter.Seq2[[]Step, error] {
	return func(yield func([]Step, error) bool) {
		r := replay{History: h, match: history.Match{Cluster: cluster}, from: from, to: to, now: from.Time, resources: map[history.Key]*listing{}}
		for _, u := range doubt.Uncertain {
			if u.until.IsZero() { // the others are of rows that come
				r.uncertain = append(r.uncertain, u)
			}
		}
		if err := r.readControl(ctx); err != nil {
			yield(nil, err)
			return
		}
		for more := true; more; {
			var err error
			if more, err = r.scan(ctx); err != nil {
				yield(nil, err)
				return
			}
			for ready := r.takeReady(); len(ready) > 0; {
				steps, n, err := r.load(ctx, ready)
				if !yield(steps, err) || err != nil {
					return
				}
				ready = ready[n:]
			}
		}
		yield(r.end(ctx))
	}
}

// replay is a replay under way.
type replay struct {
	*History
	match     history.Match
	from, to  Moment
	resources map[history.Key]*listing
	files     int // of the manifest that were scanned
	pending   []upcoming
	unknown   []*Unknown
	uncertain []*uncertain
	changes   []time.Time // of what is known
	now       time.Time   // of the last step
}

// upcoming is a row that a replay will have.
type upcoming struct {
	of              *listing // of its resource
	sequence        int64
	version, read   string    // the one of its change, or a later one, and the one at which it was read
	time, notBefore time.Time // its own
	at              time.Time // when it comes
	isOld           bool      // its version may be older than what was read before it
	isEnd           bool      // the object exists no longer, or is no longer selected
	gaps            int       // of the resource before it: versions behind a gap may be lower
}

// includes reports whether a row that was read at a version is of what was before or at the moment.
func (m Moment) includes(row *history.Facts, read string) bool {
	if m.Version != "" {
		return !isHigher(read, m.Version)
	}
	return !row.Time().After(m.Time)
}

// readControl reads what control records say about the whole history.
func (r *replay) readControl(ctx context.Context) error {
	for row, err := range r.snapshot.Rows(ctx, history.Query{Match: r.match, Types: controlTypes, WithoutObjects: true}) {
		if err != nil {
			return err
		}
		r.listingOf(row).addControl(&row.Facts)
	}
	all, err := r.unknowns(ctx, Scope{}, history.Query{})
	if err != nil {
		return err
	}
	for _, u := range all {
		if !u.begin && !u.To.IsZero() && u.To.Add(maxLag).Before(r.now) {
			continue
		}
		if !u.begin {
			if err := r.boundGap(ctx, u); err != nil {
				return err
			}
		}
		switch {
		case r.to.Version != "" && !isHigher(r.to.Version, u.FromVersion):
			continue
		case r.to.Version != "" && u.covers(r.to): // rows that end it do not come
			u.To = time.Time{}
		}
		isAhead := r.from.Version != "" && (u.ToVersion == "" || isHigher(u.ToVersion, r.from.Version))
		if isAhead && (u.covers(r.from) || !u.From.After(r.now)) { // by version it ends later, whatever the times are
			if u.From = r.now.Add(-time.Microsecond); !u.To.IsZero() && !u.To.After(r.now) {
				u.To = r.now.Add(time.Microsecond)
			}
		}
		r.unknown, r.changes = append(r.unknown, u), append(r.changes, u.From.Add(time.Microsecond), u.To)
	}
	r.changes = slices.DeleteFunc(r.changes, func(t time.Time) bool { return t.Before(r.now) })
	return nil
}

func (r *replay) listingOf(row *history.Row) *listing {
	of := history.Key{Cluster: row.Cluster, Group: row.Group, Resource: row.Resource}
	if r.resources[of] == nil {
		r.resources[of] = &listing{}
		r.resources[of].enter(of)
	}
	return r.resources[of]
}

// beginOf returns the sequence of the begin of the snapshot that ends with a row; 0 for other rows.
func (l *listing) beginOf(end int64) int64 {
	for _, w := range l.whole {
		if w.end == end {
			return w.begin
		}
	}
	return 0
}

// scan reads what rows the next files have, and reports whether there are more files. Those with rows of before the first
// moment are scanned at once: a row of an object is no step if the moment has a later one.
func (r *replay) scan(ctx context.Context) (more bool, err error) {
	files, first := r.snapshot.Manifest.Files, r.files
	for first < len(files) && r.from.Version == "" && files[first].To.Before(r.from.Time) {
		first++
	}
	if first == len(files) {
		return false, nil
	}
	r.files = first + 1
	for r.files < len(files) && !files[r.files].From.After(r.from.Time) {
		r.files++
	}
	q := history.Query{Match: r.match, Types: replayed, After: files[first].FirstSequence - 1, To: newestOf(files[first:r.files]), WithoutObjects: true}
	var key history.Key
	start := len(r.pending) // of the rows of the object
	for row, err := range r.snapshot.Rows(ctx, q) {
		if err != nil {
			return false, err
		}
		if row.Sequence > files[r.files-1].LastSequence {
			continue
		}
		if row.Key() != key {
			key, start = row.Key(), len(r.pending)
		}
		l := r.listingOf(row)
		read, version := l.readVersion(&row.Facts), row.ResourceVersion
		if row.IsEnd() { // one that a list found has the version of the object before it
			version = read
		}
		switch {
		case r.from.includes(&row.Facts, read):
			r.pending = r.pending[:start]
		case r.to.includes(&row.Facts, version):
			r.pending = append(r.pending, upcoming{of: l, sequence: row.Sequence, version: version, read: read,
				time: row.Time(), notBefore: row.NotBefore, at: row.Time(), isOld: slices.Contains(oldTypes, row.Type),
				isEnd: row.IsEnd(), gaps: l.gapsBefore(row.Sequence)})
		}
		if u := uncertainUntil(row); u != nil && u.until.After(r.from.Time) {
			r.uncertain, r.changes = append(r.uncertain, u), append(r.changes, u.until)
			if u.from.After(r.from.Time) { // the first moment has the others
				r.changes = append(r.changes, u.from)
			}
		}
	}
	return r.files < len(files), nil
}

// takeReady returns the rows that come before all those of files that were not scanned, in their order.
func (r *replay) takeReady() []upcoming {
	sortAsRead(r.pending)
	hasten(r.pending)
	slices.SortStableFunc(r.pending, func(a, b upcoming) int { return a.at.Compare(b.at) })
	n, files := len(r.pending), r.snapshot.Manifest.Files
	if r.files < len(files) { // the next one begins with what was read together with the end of the last one
		if i := slices.IndexFunc(r.pending, func(u upcoming) bool { return u.sequence >= files[r.files-1].FirstSequence }); i >= 0 {
			n = i
		}
	}
	for _, f := range files[r.files:] {
		before := func(u upcoming, from time.Time) int { return u.at.Compare(from) }
		i, _ := slices.BinarySearchFunc(r.pending, f.From, before)
		n = min(n, i)
	}
	ready := r.pending[:n]
	r.pending = slices.Clone(r.pending[n:])
	return ready
}

// sortAsRead sorts rows by resource, and those of one as a reader of its versions would have come upon them. That is the
// order of the stream for an object only: those that were read together are written by object.
func sortAsRead(rows []upcoming) {
	slices.SortFunc(rows, func(a, b upcoming) int { return cmp.Or(a.of.of.Compare(b.of.of), cmp.Compare(a.sequence, b.sequence)) })
	var before upcoming
	for i := range rows {
		u := &rows[i]
		if u.isOld && u.of == before.of && u.gaps == before.gaps {
			u.read = highest(u.read, before.read)
		}
		if before = *u; u.isEnd {
			u.version = u.read
		}
	}
	slices.SortStableFunc(rows, func(a, b upcoming) int {
		return cmp.Or(a.of.of.Compare(b.of.of), cmp.Compare(a.gaps, b.gaps), resourceversion.Order(a.read, b.read))
	})
}

// hasten has each row come before those of higher versions that were read later, if it can have been made by then.
func hasten(rows []upcoming) {
	var later []*upcoming // of a resource: each has a lower version than that before it, and comes earlier
	for i := range slices.Backward(rows) {
		u := &rows[i]
		if len(later) > 0 && later[0].of != u.of {
			later = later[:0]
		}
		n := sort.Search(len(later), func(n int) bool { return !isHigher(later[n].version, u.version) })
		if n > 0 && later[n-1].at.Before(u.at) && !later[n-1].at.Before(u.notBefore) {
			u.at = later[n-1].at
		}
		if n > 0 && !u.at.Before(later[n-1].at) {
			continue // a higher version is a bound already
		}
		end := n
		for end < len(later) && !later[end].at.Before(u.at) {
			end++
		}
		later = slices.Replace(later, n, end, u)
	}
}

// load returns the steps of the first rows, as many as fit into replayBytes, and how many rows these are.
func (r *replay) load(ctx context.Context, ready []upcoming) (steps []Step, n int, err error) {
	byTime := func(a, b upcoming) int { return a.time.Compare(b.time) }
	q := history.Query{Match: r.match, Types: replayed, From: slices.MinFunc(ready, byTime).time}
	q.To = slices.MaxFunc(ready, byTime).time.Add(time.Microsecond) // rows have no nanoseconds, and the times of files do
	places := make(map[int64]int, len(ready))                       // by sequence
	for i, u := range ready {
		places[u.sequence] = i
	}
	rows, size := make([]*history.Row, len(ready)), 0
	n = len(ready)
	for row, err := range r.snapshot.Rows(ctx, q) {
		if err != nil {
			return nil, 0, err
		}
		place, ok := places[row.Sequence]
		if !ok || place >= n {
			continue
		}
		rows[place] = row
		rows[place].Changed = nil
		for size += len(row.Object); size > replayBytes && n > 1; n-- {
			if last := rows[n-1]; last != nil {
				size -= len(last.Object)
				rows[n-1] = nil
			}
		}
	}
	slices.SortFunc(r.changes, time.Time.Compare)
	for i, u := range ready[:n] {
		steps = r.appendChanges(steps, u.at)
		r.advance(u.at)
		steps = append(steps, Step{Time: r.now, Row: rows[i], Begun: u.of.beginOf(u.sequence)})
		if r.recordLeft(rows[i]) {
			steps = append(steps, r.doubtStep())
		}
	}
	return steps, n, nil
}

// recordLeft records whether a row is of an object that rules no longer select, and reports whether that is news.
func (r *replay) recordLeft(row *history.Row) bool {
	known := len(r.uncertain)
	r.uncertain = slices.DeleteFunc(r.uncertain, func(u *uncertain) bool { return u.until.IsZero() && row.Name != "" && u.Key == row.Key() })
	if row.Type != history.Left {
		return len(r.uncertain) < known
	}
	r.uncertain = append(r.uncertain, leftSince(row))
	return true
}

// appendChanges appends the changes of what is known before a time, and until now.
func (r *replay) appendChanges(steps []Step, before time.Time) []Step {
	for len(r.changes) > 0 && (r.changes[0].Before(before) || !r.changes[0].After(r.now)) {
		r.advance(r.changes[0])
		if r.changes = r.changes[1:]; len(r.changes) == 0 || r.changes[0].After(r.now) {
			steps = append(steps, r.doubtStep())
		}
	}
	return steps
}

func (r *replay) advance(to time.Time) {
	if to.After(r.now) {
		r.now = to
	}
}

// doubtStep returns what is not known now.
func (r *replay) doubtStep() Step {
	var d Doubt
	r.uncertain = slices.DeleteFunc(r.uncertain, func(u *uncertain) bool { return !u.until.IsZero() && !r.now.Before(u.until) })
	for _, u := range r.unknown {
		if u.covers(Moment{Time: r.now}) {
			d.Unknown = append(d.Unknown, u)
		}
	}
	for _, u := range r.uncertain {
		if !u.from.After(r.now) {
			d.Uncertain = append(d.Uncertain, u)
		}
	}
	return Step{Time: r.now, Doubt: &d}
}

// end returns the steps behind the last row. A gap that the last moment is behind by its version has ended then, although no
// row may be as late.
func (r *replay) end(ctx context.Context) ([]Step, error) {
	until := r.to.Time
	for _, u := range r.unknown {
		if r.to.Version != "" && !isHigher(u.ToVersion, r.to.Version) && u.To.After(until) {
			until = u.To
		}
	}
	slices.SortFunc(r.changes, time.Time.Compare)
	steps := r.appendChanges(nil, until)
	doubt, err := r.DoubtAt(ctx, Scope{}, r.to)
	r.advance(until)
	return append(steps, Step{Time: r.now, Doubt: &doubt}), err
}
