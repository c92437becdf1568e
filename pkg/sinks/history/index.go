package history

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// Index is a history of what another sink has stored, in a folder. One goroutine uses it.
type Index struct {
	writer *history.Writer
	recent *history.Recent // nil before the first Append
}

// OpenIndex claims the index in a folder, and makes it if there is none. The error is history.ErrLocked while another
// process has it. The caller closes it.
func OpenIndex(dir string) (*Index, error) {
	m, err := history.ReadManifest(history.Folder(dir))
	if err != nil {
		return nil, err
	}
	if m.Read == nil && len(m.Files) > 0 {
		return nil, fmt.Errorf("%s is the history that an exporter writes, and no index: name another folder", dir)
	}
	w, err := history.OpenWriter(history.Folder(dir))
	if err != nil {
		return nil, err
	}
	return &Index{writer: w}, nil
}

// Read returns up to where the source has been read, as the last Append stored it; nil in a new index.
func (x *Index) Read() json.RawMessage {
	m, _ := x.writer.Manifest()
	return m.Read
}

// Append stores the rows of changes, in their order, without those that it has, and with these up to where the source has
// been read: all or nothing. since is when the earliest change of this and later calls was read, about; zero if any may
// come again.
func (x *Index) Append(changes []*event.Change, since time.Time, read json.RawMessage) error {
	if x.recent == nil {
		m, _ := x.writer.Manifest()
		if !since.IsZero() {
			since = since.Add(-clockSkew)
		}
		stored, err := x.writer.ReadSeen([]history.Zone{{UpTo: m.LastSequence(), Since: since}})
		if err != nil {
			return err
		}
		x.recent = history.NewRecent(stored)
	}
	rows := make([]history.Row, 0, len(changes))
	for _, c := range changes {
		if r := newRow(c); hasRow(c) && x.recent.Add(&r.Facts, isVersion(c)) {
			rows = append(rows, r)
		}
	}
	b, err := x.writer.NewBatch(rows)
	if err != nil {
		return err
	}
	b.With(read)
	if err := b.Commit(); err != nil {
		return err
	}
	for more := true; more; {
		if more, err = x.writer.Compact(false); err != nil {
			return err
		}
	}
	return nil
}

// States passes the newest state of each object that exists, as a change with what rows and redaction need, until pass
// returns false. It is valid during the call.
func (x *Index) States(ctx context.Context, dir string, of history.Match, pass func(*event.Change) bool) error {
	s, err := history.Open(history.Folder(dir))
	if err != nil {
		return err
	}
	for row, failed := range s.StateAt(ctx, time.Now().Add(clockSkew), of) {
		if err = failed; err != nil {
			break
		}
		c, _ := changeOf(row) // alive rows have no differences
		if c.Changed, c.ObservedAt = nil, row.ObservedAt; !pass(c) {
			break
		}
	}
	return cmp.Or(err, s.Close())
}

// Close gives the folder back.
func (x *Index) Close() error { return x.writer.Close() }
