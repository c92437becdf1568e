package history

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

// powerLoss is a disk that fails from an operation on, and then loses what was not synced: contents, and which names folders
// have.
type powerLoss struct {
	osDisk
	left    int               // operations that succeed
	applies bool              // the one that fails is done nevertheless
	content map[string]bool   // paths whose content is not durable
	undo    map[string][]undo // by folder
	dir     string            // for what is removed
}

type undo func() error

var errPower = errors.New("no power")

func newPowerLoss(t *testing.T, left int, applies bool) *powerLoss {
	return &powerLoss{left: left, applies: applies, content: map[string]bool{}, undo: map[string][]undo{}, dir: t.TempDir()}
}

// do makes an operation, and failed reports that it fails.
func (d *powerLoss) do(operation func() error) error {
	d.left--
	if d.left < 0 && (d.left < -1 || !d.applies) {
		return errPower
	}
	err := operation()
	if d.left < 0 {
		return errPower
	}
	return err
}

func (d *powerLoss) create(path string) (f diskFile, err error) {
	err = d.do(func() error {
		if f, err = d.osDisk.create(path); err == nil {
			d.content[path] = true
			d.later(path, func() error { return os.Remove(path) })
		}
		return err
	})
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	return &powerFile{d, path, f}, nil
}

type powerFile struct {
	disk *powerLoss
	path string
	diskFile
}

func (f *powerFile) Write(b []byte) (int, error) {
	err := f.disk.do(func() error { _, err := f.diskFile.Write(b); return err })
	return len(b), err
}

func (f *powerFile) Sync() error {
	return f.disk.do(func() error { delete(f.disk.content, f.path); return nil })
}

func (d *powerLoss) later(path string, u undo) {
	d.undo[filepath.Dir(path)] = append(d.undo[filepath.Dir(path)], u)
}

func (d *powerLoss) link(path, name string) error {
	return d.do(func() error {
		err := d.osDisk.link(path, name)
		if err == nil {
			d.later(name, func() error { return os.Remove(name) })
		}
		return err
	})
}

func (d *powerLoss) rename(path, name string) error {
	return d.do(func() error {
		d.later(name, func() error { return os.Rename(name, path) })
		return d.osDisk.rename(path, name)
	})
}

func (d *powerLoss) remove(path string) error {
	return d.do(func() error {
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			return errors.Join(err, d.osDisk.remove(path))
		}
		kept := filepath.Join(d.dir, fmt.Sprint(d.left))
		d.later(path, func() error { return os.Rename(kept, path) })
		return os.Rename(path, kept)
	})
}

func (d *powerLoss) makeDir(path string) error {
	return d.do(func() error { return d.osDisk.makeDir(path) })
}

func (d *powerLoss) syncDir(path string) error {
	return d.do(func() error { delete(d.undo, path); return nil })
}

// lose makes the folder what it is after the loss.
func (d *powerLoss) lose(t *testing.T) {
	t.Helper()
	for path := range d.content {
		if err := os.Truncate(path, 1); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	for _, undos := range d.undo {
		for i := range undos {
			if err := undos[len(undos)-1-i](); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
}

// model is a stream that is delivered again from what is settled on.
type model struct {
	rows    []Row // that are to be stored, without sequences
	settled int   // rows that do not come again
	acked   int
}

// deliver delivers rows until the disk fails, or all are stored, with merges in between.
func (m *model) deliver(w *Writer, random *rand.Rand) error {
	for next := m.settled; next < len(m.rows); {
		if err := w.Begin(); err != nil {
			return err
		}
		seen, err := w.ReadSeen([]Zone{{After: int64(m.settled), UpTo: w.manifest.LastSequence()}})
		if err != nil {
			return err
		}
		end := min(len(m.rows), next+1+random.IntN(6))
		var rows []Row
		for i := next; i < end; i++ {
			if !seen.Has(&m.rows[i].Facts, i%2 == 0) {
				rows = append(rows, m.rows[i])
			}
		}
		if len(rows) > 0 {
			b, err := w.NewBatch(rows)
			if err != nil {
				return err
			}
			if err := b.Commit(); err != nil {
				return err
			}
		}
		next = end
		m.acked = max(m.acked, next)
		if random.IntN(3) == 0 && next == m.acked {
			m.settled = next
		}
		if _, err := w.Compact(random.IntN(9) == 0); err != nil {
			return err
		}
	}
	return nil
}

// newModel makes a stream of changes of a few objects over three days.
func newModel(n int, random *rand.Rand) *model {
	m := &model{}
	alive := map[string]bool{}
	for i := range n {
		name := fmt.Sprint("p", random.IntN(9))
		kind := "updated"
		switch {
		case !alive[name]:
			kind = "added"
		case random.IntN(4) == 0:
			kind = "deleted"
		}
		alive[name] = kind != "deleted"
		r := Row{Facts: Facts{Cluster: "c", Version: "v1", Resource: "pods", Kind: "Pod", Namespace: "a", Name: name, UID: "u", Type: kind,
			ResourceVersion: fmt.Sprint(1000 + i), ObservedAt: second(0).Add(time.Duration(i) * 72 * time.Hour / time.Duration(n))}}
		if kind != "deleted" {
			r.Object = fmt.Sprintf(`{"version":%d}`, i)
		}
		m.rows = append(m.rows, r)
	}
	return m
}

// verify compares what is stored with the stream: all rows once, in order, and the state at some times.
func (m *model) verify(t *testing.T, in Store) {
	t.Helper()
	s := openStore(t, in)
	stored := map[int64]string{}
	for row, err := range s.Rows(t.Context(), Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if stored[row.Sequence] != "" {
			t.Fatalf("sequence %d is there twice", row.Sequence)
		}
		stored[row.Sequence] = row.ResourceVersion + row.Name + row.Type + row.Object
	}
	for i := range m.rows {
		r := &m.rows[i]
		if got := stored[int64(i+1)]; got != r.ResourceVersion+r.Name+r.Type+r.Object {
			t.Fatalf("sequence %d is %q, want %+v", i+1, got, r)
		}
	}
	if len(stored) != len(m.rows) {
		t.Fatalf("%d rows, want %d", len(stored), len(m.rows))
	}
	m.verifyState(t, s, 0)
}

// verifyState compares the state at some times from a row on.
func (m *model) verifyState(t *testing.T, s *Snapshot, from int) {
	t.Helper()
	for at := from; at < len(m.rows); at += 7 {
		want := map[string]string{}
		for i := range m.rows[:at+1] {
			if r := &m.rows[i]; r.Type == "deleted" {
				delete(want, r.Name)
			} else {
				want[r.Name] = r.Object
			}
		}
		got := map[string]string{}
		for row, err := range s.StateAt(t.Context(), m.rows[at].ObservedAt, Match{}) {
			if err != nil {
				t.Fatal(err)
			}
			got[row.Name] = row.Object
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("at row %d: %v, want %v", at, got, want)
		}
	}
}

// openSmall opens a writer that merges after a few rows.
func openSmall(in Store) (*Writer, error) {
	w, err := OpenWriter(in)
	if err == nil {
		w.largeRows, w.fanIn = 40, 3
	}
	return w, err
}

// TestNothingIsLostOrDoubledWhereverTheDiskStops, with what was not synced lost.
func TestNothingIsLostOrDoubledWhereverTheDiskStops(t *testing.T) {
	const rows = 50
	for at := 1; ; at += 11 {
		random := rand.New(rand.NewPCG(1, uint64(at)))
		dir, m := filepath.Join(t.TempDir(), "history"), newModel(rows, random)
		d := newPowerLoss(t, at, at%2 == 0)
		w, err := openSmall(&folder{dir, d})
		if err == nil {
			err = errors.Join(m.deliver(w, random), w.Close())
		}
		if err == nil {
			m.verify(t, Folder(dir))
			if at < 100 {
				t.Fatalf("the whole test is %d operations", at)
			}
			return
		}
		if !errors.Is(err, errPower) {
			t.Fatal(err)
		}
		d.lose(t)
		for range 2 { // the second start has nothing to do
			w, err = openSmall(Folder(dir))
			if err != nil {
				t.Fatalf("stopped at %d: %v", at, err)
			}
			if err := errors.Join(m.deliver(w, random), w.Close()); err != nil {
				t.Fatalf("stopped at %d: %v", at, err)
			}
		}
		m.verify(t, Folder(dir))
	}
}

func TestAnOlderWriterIsFenced(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir, m := t.TempDir(), newModel(60, random)
	first, err := openSmall(Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openSmall(Folder(dir)); !errors.Is(err, ErrLocked) {
		t.Errorf("a second writer on this machine: %v", err)
	}
	begun := &model{rows: m.rows[:30]}
	if err := begun.deliver(first, random); err != nil {
		t.Fatal(err)
	}
	m.settled = begun.settled
	if err := first.Close(); err != nil { // another machine does not see the lock
		t.Fatal(err)
	}
	second, err := openSmall(Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	var fenced *FencedError
	for range 2 {
		if err := m.deliver(first, random); !errors.As(err, &fenced) || fenced.Writer != second.id {
			t.Errorf("the first writer continued: %v", err)
		}
	}
	if err := errors.Join(m.deliver(second, random), second.Close()); err != nil {
		t.Fatal(err)
	}
	m.verify(t, Folder(dir))
}

// TestAFrozenWriterCommitsNothingByANumberThatIsGone: its number was used, and removed behind newer ones.
func TestAFrozenWriterCommitsNothingByANumberThatIsGone(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir, m := t.TempDir(), newModel(200, random)
	frozen, err := openSmall(Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := frozen.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := openSmall(Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.deliver(w, random), w.Close()); err != nil {
		t.Fatal(err)
	}
	var fenced *FencedError
	if err := m.deliver(frozen, random); !errors.As(err, &fenced) {
		t.Errorf("it committed: %v", err)
	}
	m.verify(t, Folder(dir))
}

// TestMergesLeaveFewFiles, sorted and with what existed at their start.
func TestMergesLeaveFewFiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir, m := t.TempDir(), newModel(900, random)
	w, err := openSmall(Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.deliver(w, random); err != nil {
		t.Fatal(err)
	}
	large := 0
	for _, f := range w.manifest.Files {
		if f.Large {
			large++
		}
	}
	if n := len(w.manifest.Files); large < 10 || n > large+15 {
		t.Errorf("%d files, of which %d are large", n, large)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "*.parquet"))
	if err != nil || len(found) != len(w.manifest.Files) {
		t.Errorf("%d files are there, want %d (%v)", len(found), len(w.manifest.Files), err)
	}
	m.verify(t, Folder(dir))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRetentionKeepsTheStateOfWhatStays(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir, m := t.TempDir(), newModel(900, random)
	w, err := openSmall(Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := m.deliver(w, random); err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, f := range w.manifest.Files {
		bytes += f.Bytes
	}
	for _, name := range []string{"age", "size"} { // size removes more
		before := w.manifest.Files
		cutoff, most := second(0).Add(30*time.Hour), int64(0)
		if name == "size" {
			cutoff, most = time.Time{}, bytes/3
		}
		if err := w.Retain(cutoff, most); err != nil {
			t.Fatal(err)
		}
		first := w.manifest.Files[0]
		if len(w.manifest.Files) >= len(before) || !first.Large || first.Alive == 0 {
			t.Errorf("%s: %d of %d files stay, from %+v on", name, len(w.manifest.Files), len(before), first)
		}
		if name == "age" && first.FirstSequence > 30*900/72+1 {
			t.Errorf("age: what is younger is gone: %+v", first)
		}
		m.verifyState(t, openStore(t, Folder(dir)), int(first.FirstSequence-1))
	}
	days, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range days {
		if entries, _ := os.ReadDir(filepath.Join(dir, d.Name())); len(entries) == 0 && strings.HasPrefix(d.Name(), dayPrefix) {
			t.Errorf("%s is empty", d.Name())
		}
	}
}

// TestWhatIsNotThereIsNull wherever it stands among rows: to other readers "" and the year 1 are values.
func TestWhatIsNotThereIsNull(t *testing.T) {
	for n := range 80 {
		rows := make([]Row, n)
		for i := range rows {
			rows[i].Changed = []Difference{{}}
			if i%7 == 1 {
				rows[i].User, rows[i].ChangedAt = "bob", time.Unix(1, 0)
				rows[i].Changed = []Difference{{}, {}, {From: "1"}, {}, {}}
			}
		}
		var file bytes.Buffer
		if err := newRowWriter(&file, &File{}).writeRows(rows); err != nil {
			t.Fatal(err)
		}
		f, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range f.RowGroups() {
			marked := int64((n + 5) / 7)
			for column, want := range map[int]int64{columnUser: int64(n) - marked, columnChangedAt: int64(n) - marked, columnChangedFrom: int64(n) + 3*marked} {
				index, err := group.ColumnChunks()[column].ColumnIndex()
				if err != nil {
					t.Fatal(err)
				}
				if got := index.NullCount(0); got != want {
					t.Errorf("of %d rows %d have no value in column %d, want %d", n, got, column, want)
				}
			}
		}
	}
}

// TestMergesKeepRowsAsTheyWere: each value, on whichever page it is, also of columns with many values for a row, and where
// most rows are skipped.
func TestMergesKeepRowsAsTheyWere(t *testing.T) {
	in, random := Folder(t.TempDir()), rand.New(rand.NewPCG(3, 4))
	w, err := OpenWriter(in)
	if err != nil {
		t.Fatal(err)
	}
	w.largeRows, w.fanIn = 9_000, 4
	stored := map[int64]Row{}
	for range 10 {
		var rows []Row
		for range 1_000 {
			r := newRow(t, fmt.Sprintf("1 updated ns/pod-%d", random.IntN(5_000)))
			r.Object = strings.Repeat(fmt.Sprint(random.IntN(1e9)), 1+random.IntN(20)*random.IntN(20))
			for d := random.IntN(2) * random.IntN(80); d > 0; d-- {
				r.Changed = append(r.Changed, Difference{Path: fmt.Sprint("/", random.IntN(1e6)), To: strings.Repeat("0", random.IntN(500))})
			}
			rows = append(rows, r)
		}
		batch, err := w.NewBatch(rows)
		if err == nil {
			err = batch.Commit()
		}
		for _, r := range rows {
			stored[r.Sequence] = r
		}
		for more := true; more && err == nil; {
			more, err = w.Compact(false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, some := openStore(t, in), stored[5_000]
	if !s.Manifest.Files[0].Large || len(s.Manifest.Files) < 2 {
		t.Fatalf("%+v", s.Manifest.Files)
	}
	for _, q := range []Query{{}, {WithoutObjects: true}, {Match: Match{Name: some.Name}}} {
		seen := 0
		for row, err := range s.Rows(t.Context(), q) {
			if err != nil {
				t.Fatal(err)
			}
			want := stored[row.Sequence]
			if q.WithoutObjects {
				want.Object = ""
			}
			if seen++; fmt.Sprint(*row) != fmt.Sprint(want) {
				t.Fatalf("got %+v, want %+v", row, want)
			}
		}
		if q.Name == "" && seen != len(stored) || seen == 0 {
			t.Errorf("%+v: %d rows", q, seen)
		}
	}
}

// TestShortFilesAreErrors: what is cut off is neither read as no rows, nor merged away, nor passed over by a rewrite.
func TestShortFilesAreErrors(t *testing.T) {
	in := Folder(writeFolder(t, []string{"1 added ns/a"}, []string{"2 added ns/b"}, []string{"3 added ns/c"}))
	w, err := OpenWriter(in)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := w.Manifest()
	cut, s := before.Files[1], openStore(t, in)
	for size := cut.Bytes - 1; size >= 0; size -= 1 + size/100 {
		if err := os.Truncate(filepath.Join(in.String(), cut.Path), size); err != nil {
			t.Fatal(err)
		}
		var failed error
		for _, err := range s.Rows(t.Context(), Query{}) {
			failed = err
		}
		if failed == nil {
			t.Fatalf("%d of %d bytes are read without an error", size, cut.Bytes)
		}
	}
	w.fanIn = 3
	if more, err := w.Compact(true); err == nil {
		t.Error("it is merged:", more)
	}
	if _, err := w.Rewrite(func(*Row) bool { return false }); err == nil {
		t.Error("it is rewritten")
	}
	if after, _ := w.Manifest(); len(after.Files) != len(before.Files) {
		t.Errorf("files %+v", after.Files)
	}
}

// TestRewriteOfDamagedFilesFails: it does not say that they have nothing to change.
func TestRewriteOfDamagedFilesFails(t *testing.T) {
	in := Folder(writeFolder(t, []string{"1 added ns/a"}))
	w, err := OpenWriter(in)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := w.Manifest()
	path := filepath.Join(in.String(), m.Files[0].Path)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/8] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if rows, err := w.Rewrite(func(*Row) bool { return true }); err == nil {
		t.Error("rows without an error:", rows)
	}
}
