package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// controlTypes are the types of the rows that are about a resource, or about its objects in a namespace.
var controlTypes = []string{"snapshot.begin", "snapshot.end", "gap"}

// endOfTime is behind every row.
var endOfTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// History is a history as it was when it was opened. Later commits do not change it.
type History struct {
	snapshot *history.Snapshot
	store    history.Store
}

// Open opens the history in a folder, or in a bucket (s3://…). The caller closes it.
func Open(where string) (*History, error) {
	in, err := history.StoreAt(where, history.Keys{})
	if err != nil {
		return nil, exit.With(exit.Usage, fmt.Errorf("--dir: %w", err))
	}
	h, err := OpenStore(in)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; 'exporter run --history %s' writes one, and --dir names another place", err, where)
	}
	if err != nil {
		return nil, exit.With(exit.Environment, err)
	}
	return h, nil
}

// OpenStore opens the history in a store. The caller closes it. A store without one is fs.ErrNotExist.
func OpenStore(in history.Store) (*History, error) {
	s, err := history.Open(in)
	if err != nil {
		return nil, err
	}
	return &History{s, in}, nil
}

// Close closes the files of the history.
func (h *History) Close() error { return h.snapshot.Close() }

// Scope is the objects that a question is about.
type Scope struct {
	Types     []event.Resource // none: all
	Namespace string           // "" for all
	Name      string           // "" for all
}

// String names the scope as kubectl would.
func (s Scope) String() string {
	types := make([]string, 0, len(s.Types))
	for _, t := range s.Types {
		types = append(types, t.String())
	}
	text := strings.Join(types, ",")
	if s.Name != "" {
		text += "/" + s.Name
	}
	if s.Namespace != "" {
		text += " in namespace " + s.Namespace
	}
	return text
}

// matches returns what selects the rows of the scope.
func (s Scope) matches() (all []history.Match) {
	one := history.Match{Name: s.Name}
	if s.Namespace != "" {
		one.Namespace = &s.Namespace
	}
	if len(s.Types) == 0 {
		return []history.Match{one}
	}
	for _, t := range s.Types {
		one.Group, one.Resource = t.Group, t.Resource
		all = append(all, one)
	}
	return all
}

// objectsAt returns the objects of a scope that existed at a moment, by object within each type, as far as rows tell.
func (h *History) objectsAt(ctx context.Context, s Scope, m Moment) iter.Seq2[*history.Row, error] {
	return func(yield func(*history.Row, error) bool) {
		for _, match := range s.matches() {
			rows := h.snapshot.StateAt(ctx, m.Time, match)
			if m.Version != "" {
				rows = h.stateAtVersion(ctx, match, m.Version)
			}
			for row, err := range rows {
				if !yield(row, err) || err != nil {
					return
				}
			}
		}
	}
}

// stateAtVersion returns what existed behind the change with a version. Versions order the changes exactly, where their
// times are known to seconds.
func (h *History) stateAtVersion(ctx context.Context, match history.Match, version string) iter.Seq2[*history.Row, error] {
	return func(yield func(*history.Row, error) bool) {
		carried, err := h.carriedOver(ctx, match)
		if err != nil {
			yield(nil, err)
			return
		}
		f := versionFold{history: h, ctx: ctx, version: version, carried: carried}
		for row, err := range h.snapshot.Rows(ctx, history.Query{Match: match}) {
			if err == nil {
				err = f.addRow(row)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, found := range f.takeFound() {
				if !yield(found, nil) {
					return
				}
			}
		}
		for _, found := range f.end() {
			if !yield(found, nil) {
				return
			}
		}
	}
}

// carriedOver returns the objects that existed where the history begins, because what was before was deleted.
func (h *History) carriedOver(ctx context.Context, match history.Match) (all []*history.Row, err error) {
	if len(h.snapshot.Manifest.Files) == 0 || h.snapshot.Manifest.Files[0].Alive == 0 {
		return nil, nil
	}
	for row, err := range h.snapshot.StateAt(ctx, time.Time{}.Add(time.Nanosecond), match) {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// versionFold finds the newest state of each object up to a version, in rows by object.
type versionFold struct {
	history *History
	ctx     context.Context
	version string
	carried []*history.Row // that were not passed yet
	listing listing        // of the current resource
	key     history.Key    // of the current object
	before  history.Facts  // its last row
	newest  *history.Row   // its last row up to the version
	later   []int64        // sequences of its other rows
	found   []*history.Row
}

func (f *versionFold) takeFound() []*history.Row {
	found := f.found
	f.found = nil
	return found
}

// end returns what is left.
func (f *versionFold) end() []*history.Row {
	f.endObject()
	f.passCarried(nil)
	return f.takeFound()
}

func (f *versionFold) addRow(row *history.Row) error {
	if key := row.Key(); key != f.key {
		f.endObject()
		f.passCarried(&key)
		f.listing.enter(key)
		f.key, f.before = key, history.Facts{}
		if len(f.carried) > 0 && f.carried[0].Key() == key {
			f.newest, f.before, f.carried = f.carried[0], f.carried[0].Facts, f.carried[1:]
		}
	}
	if row.Name == "" {
		f.listing.addControl(&row.Facts)
		return nil
	}
	if row.Type == "attributed" && f.newest != nil && row.UID == f.newest.UID && row.ResourceVersion == f.newest.ResourceVersion {
		f.newest.User, f.newest.Attribution = row.User, row.Attribution
	}
	if !row.IsState() {
		return nil
	}
	read, err := f.readVersion(row)
	if err != nil {
		return err
	}
	if isHigher(read, f.version) {
		f.later = append(f.later, row.Sequence)
	} else {
		f.newest = row
	}
	f.before = row.Facts
	return nil
}

// readVersion returns the version of the cluster at which a row was read, at least: its own, or that of the list that showed
// it. A delete in the version before it was found by a list, or made by edited rules.
func (f *versionFold) readVersion(row *history.Row) (string, error) {
	read := f.listing.readVersion(&row.Facts)
	if !row.IsEnd() || read != f.before.ResourceVersion {
		return read, nil
	}
	before, err := f.history.versionBefore(f.ctx, row)
	return highest(read, before), err
}

// endObject adds the current object to what was found, if it existed.
func (f *versionFold) endObject() {
	if f.newest != nil && !f.newest.IsEnd() && !f.listing.lacks(f.newest, f.later, f.version) {
		f.found = append(f.found, f.newest)
	}
	f.newest, f.later = nil, nil
}

// passCarried passes the objects before a key of which there are no rows.
func (f *versionFold) passCarried(next *history.Key) {
	for len(f.carried) > 0 && (next == nil || f.carried[0].Key().Compare(*next) < 0) {
		if f.listing.enter(f.carried[0].Key()); !f.listing.lacks(f.carried[0], nil, f.version) {
			f.found = append(f.found, f.carried[0])
		}
		f.carried = f.carried[1:]
	}
}

// versionBefore returns the highest version that rows before another one have, within the time that an exporter may lag.
func (h *History) versionBefore(ctx context.Context, row *history.Row) (version string, err error) {
	match := history.Match{Cluster: row.Cluster, Group: row.Group, Resource: row.Resource}
	q := history.Query{Match: match, To: row.ObservedAt, WithoutObjects: true}
	for other, err := range h.snapshot.Rows(ctx, q) {
		if err != nil {
			return "", err
		}
		if other.Sequence < row.Sequence {
			version = highest(version, other.ResourceVersion)
		}
	}
	return version, nil
}

// listing is what control records of a resource say about the rows behind them.
type listing struct {
	of     history.Key
	begun  map[string]int64 // sequence of the begin of the open snapshot, by namespace
	whole  []wholeList
	floors []floor
}

// wholeList is a snapshot that has ended: what no row is about since it began did not exist.
type wholeList struct {
	namespace  string
	begin, end int64 // sequences
	position   string
	at         time.Time // of the end
}

// floor is a version below which nothing was read behind a sequence.
type floor struct {
	namespace string
	sequence  int64
	until     int64 // 0: for ever
	version   string
}

func (l *listing) enter(key history.Key) {
	of := history.Key{Cluster: key.Cluster, Group: key.Group, Resource: key.Resource}
	if l.of != of {
		*l = listing{of: of, begun: map[string]int64{}}
	}
}

func (l *listing) addControl(row *history.Facts) {
	switch row.Type {
	case "snapshot.begin":
		l.begun[row.Namespace] = row.Sequence
	case "snapshot.end":
		begin := l.begun[row.Namespace] // 0: before the history
		l.whole = append(l.whole, wholeList{row.Namespace, begin, row.Sequence, row.ResourceVersion, row.ObservedAt})
		l.floors = append(l.floors, floor{row.Namespace, begin, row.Sequence, row.ResourceVersion})
	case "gap":
		l.floors = append(l.floors, floor{namespace: row.Namespace, sequence: row.Sequence, version: row.GapTo})
	}
}

// readVersion returns the version of the cluster at which a row was read, as far as control records tell. After a restored
// backup versions begin again.
func (l *listing) readVersion(row *history.Facts) string {
	read := row.ResourceVersion
	for _, f := range l.floors {
		inside := row.Sequence > f.sequence && (f.until == 0 || row.Sequence < f.until && row.Type == "snapshot")
		if inside && (f.namespace == "" || f.namespace == row.Namespace) {
			read = highest(read, f.version)
		}
	}
	return read
}

// gapsBefore returns how many gaps a row of the resource stands behind.
func (l *listing) gapsBefore(sequence int64) (n int) {
	for _, f := range l.floors {
		if f.until == 0 && f.sequence < sequence {
			n++
		}
	}
	return n
}

// lacks reports whether a whole list up to a version shows that an object does not exist: it was last read before the list
// began. later are the sequences of rows of it above the version.
func (l *listing) lacks(row *history.Row, later []int64, version string) bool {
	return slices.ContainsFunc(l.whole, func(w wholeList) bool {
		if w.namespace != "" && w.namespace != row.Namespace || isHigher(w.position, version) || row.Sequence > w.begin {
			return false
		}
		return !slices.ContainsFunc(later, func(s int64) bool { return s > w.begin && s < w.end })
	})
}

// isHigher reports whether a is a higher version than b. "" is lower than any, and versions without an order are equal.
func isHigher(a, b string) bool {
	order, ordered := resourceversion.Compare(a, b)
	return ordered && order > 0 || b == "" && a != ""
}

func highest(a, b string) string {
	if isHigher(a, b) {
		return a
	}
	return b
}

// followEvery is how often Follow looks for a commit.
const followEvery = time.Second

// Follow passes the entries of the rows that are written to a folder after those of a history, until ctx ends, which is no
// error. An author that comes later than its change is an entry of the type attributed.
func Follow(ctx context.Context, where string, since *History, o LogOptions, pass func(*Entry) error) error {
	version, tick := since.snapshot.Manifest.Version, time.NewTicker(followEvery)
	defer tick.Stop()
	for o.After = since.snapshot.Manifest.LastSequence(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if m, err := history.ReadManifest(since.store); err != nil || m.Version == version {
			if err != nil {
				return err
			}
			continue
		}
		h, err := Open(where)
		if err != nil {
			return err
		}
		if h.snapshot.Manifest.LastSequence() > o.After {
			err = h.Log(ctx, o, pass)
		}
		version, o.After = h.snapshot.Manifest.Version, h.snapshot.Manifest.LastSequence()
		if closeErr := h.Close(); err == nil {
			err = closeErr
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
