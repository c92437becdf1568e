package history

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// second returns a time, by number.
func second(n int) time.Time { return time.Date(2026, 11, 28, 12, 0, n, 0, time.UTC) }

// newRow makes a row from "sequence type namespace/name": it is made at the second of its sequence.
func newRow(t testing.TB, text string) Row {
	t.Helper()
	var r Row
	var object string
	if _, err := fmt.Sscan(text, &r.Sequence, &r.Type, &object); err != nil {
		t.Fatal(err)
	}
	r.Namespace, r.Name, _ = strings.Cut(object, "/")
	r.Cluster, r.Version, r.Resource, r.Kind, r.UID = "c", "v1", "pods", "Pod", "u"
	r.ResourceVersion = fmt.Sprint(100 + r.Sequence)
	r.ObservedAt = second(int(r.Sequence))
	if r.Name != "" && r.Type != "deleted" {
		r.Object = fmt.Sprintf(`{"v":%d}`, r.Sequence)
	}
	return r
}

// writeFolder writes a history of files, each of rows in sorted order.
func writeFolder(t testing.TB, files ...[]string) string {
	t.Helper()
	dir := t.TempDir()
	m := Manifest{Format: FormatVersion, Version: 1}
	for i, texts := range files {
		var rows []Row
		for _, text := range texts {
			rows = append(rows, newRow(t, text))
		}
		slices.SortFunc(rows, func(a, b Row) int { return a.Compare(&b.Facts) })
		f := File{Path: fmt.Sprintf("day=2026-11-28/%d.parquet", i)}
		path := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := newRowWriter(out, &f).writeRows(rows); err != nil {
			t.Fatal(err)
		}
		if f.Bytes, err = out.Seek(0, io.SeekCurrent); err != nil {
			t.Fatal(err)
		}
		out.Close()
		f.Large = f.Alive > 0
		m.Files = append(m.Files, f)
	}
	content, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, manifestName(m.Version))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// openStore opens a snapshot, closed at the end of the test.
func openStore(t testing.TB, in Store) *Snapshot {
	t.Helper()
	s, err := Open(in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// text returns the sequences and types of rows.
func text(t testing.TB, rows func(func(*Row, error) bool)) string {
	t.Helper()
	var all []string
	for row, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(row.Sequence, " ", row.Namespace, "/", row.Name, " ", row.Object))
	}
	return strings.Join(all, ", ")
}

var someFiles = [][]string{
	{"1 snapshot.begin /", "2 snapshot a/x", "3 snapshot b/y", "4 snapshot.end /"},
	{"5 updated b/y", "6 added a/z", "7 deleted a/x"},
	{"5 alive b/y", "6 alive a/z", "8 updated a/z", "9 gap /"},
	{"10 updated b/y", "11 deleted a/z"},
}

func TestRowsComeByObjectAndWithinBounds(t *testing.T) {
	s := openStore(t, Folder(writeFolder(t, someFiles...)))
	a := "a"
	for name, c := range map[string]struct {
		query Query
		want  string
	}{
		"all": {Query{WithoutObjects: true}, "1 / , 4 / , 9 / , 2 a/x , 7 a/x , 6 a/z , 8 a/z , 11 a/z , 3 b/y , 5 b/y , 10 b/y "},
		"one": {Query{Match: Match{Resource: "pods", Namespace: &a, Name: "z"}},
			`1 / , 4 / , 9 / , 6 a/z {"v":6}, 8 a/z {"v":8}, 11 a/z `},
		"time":  {Query{From: second(7), To: second(9), WithoutObjects: true}, "9 / , 7 a/x , 8 a/z "},
		"other": {Query{Match: Match{Resource: "deployments", Group: "apps"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(t, s.Rows(t.Context(), c.query)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestTheStateAtATimeIsThatOfItsNewestRows(t *testing.T) {
	s := openStore(t, Folder(writeFolder(t, someFiles...)))
	for at, want := range map[int]string{
		1: "", 2: `2 a/x {"v":2}`, 4: `2 a/x {"v":2}, 3 b/y {"v":3}`, 6: `2 a/x {"v":2}, 6 a/z {"v":6}, 5 b/y {"v":5}`,
		7: `6 a/z {"v":6}, 5 b/y {"v":5}`, 8: `8 a/z {"v":8}, 5 b/y {"v":5}`, 10: `8 a/z {"v":8}, 10 b/y {"v":10}`, 11: `10 b/y {"v":10}`,
	} {
		if got := text(t, s.StateAt(t.Context(), second(at), Match{})); got != want {
			t.Errorf("at %d: %s, want %s", at, got, want)
		}
	}
	b := "b"
	if got := text(t, s.StateAt(t.Context(), second(10), Match{Resource: "pods", Namespace: &b, Name: "y"})); got != `10 b/y {"v":10}` {
		t.Errorf("of one object: %s", got)
	}
}

// TestASnapshotThatEndsRemovesWhatItLacks: it was deleted while nothing watched. Until then it may exist.
func TestASnapshotThatEndsRemovesWhatItLacks(t *testing.T) {
	s := openStore(t, Folder(writeFolder(t, []string{"1 added a/x", "2 added a/y", "3 added b/z"},
		[]string{"4 snapshot.begin a/", "5 snapshot a/y"}, []string{"6 snapshot.end a/"})))
	for at, want := range map[int]string{5: "1 a/x, 5 a/y, 3 b/z", 6: "5 a/y, 3 b/z"} {
		got := text(t, s.StateAt(t.Context(), second(at), Match{}))
		for _, object := range []string{` {"v":1}`, ` {"v":3}`, ` {"v":5}`} {
			got = strings.ReplaceAll(got, object, "")
		}
		if got != want {
			t.Errorf("at %d: %s, want %s", at, got, want)
		}
	}
}
