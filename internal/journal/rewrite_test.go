package journal

import (
	"bytes"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// incompressibleBytes are bytes that no compression makes look otherwise.
func incompressibleBytes(seed uint64) []byte {
	b := make([]byte, 4000)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b) // never fails
	return b
}

// countFilesWith counts the files under dir in which a part of needle stands.
func countFilesWith(t *testing.T, dir string, needle []byte) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, needle[100:140]) {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// replacingFuncs takes old for what is replaced.
func replacingFuncs(old []byte) RewriteFuncs {
	with := func(b *[]byte) bool {
		if !bytes.Equal(*b, old) {
			return false
		}
		*b = []byte(`"***"`)
		return true
	}
	return RewriteFuncs{
		Change: func(c *event.Change) bool { return with(&c.After) },
		Body:   func(_ event.Resource, b *event.Body) bool { return with(&b.Raw) },
	}
}

func TestRewrittenDataIsLeftInNoFile(t *testing.T) {
	dir := t.TempDir()
	old, other := incompressibleBytes(1), incompressibleBytes(2)
	options := Options{Dir: dir, Declaration: Declaration{Sinks: []string{"main"}}}
	r := startJournal(t, options)
	for n := 1; n <= 20; n++ {
		o := smallObservation("pods", n)
		o.Changes[0].After = old
		if n%2 == 0 {
			o.Changes[0].After = other
		}
		o.Bodies = []event.Body{{Key: o.Known[0].Key, UID: o.Known[0].UID, Raw: o.Changes[0].After}}
		r.mustAppend(o)
		if err := r.Flush(t.Context()); err != nil { // a frame each
			t.Fatal(err)
		}
	}
	letter := journaltest.SmallChange(3)
	letter.After = old
	r.mustSettle("main", event.Cursor{Low: 1, Lanes: map[string]uint64{"l": 3}}, event.DeadLetter{Offset: 3, Time: time.Unix(1, 0), Reason: "r", Change: letter})
	r.stopAndClose()
	if countFilesWith(t, dir, old) == 0 {
		t.Fatal("the files do not show what they hold, so nothing is proved")
	}
	if err := os.Mkdir(filepath.Join(dir, brokenPrefix+"-20260102"), 0o750); err != nil {
		t.Fatal(err)
	}

	j := openJournal(t, options)
	done, err := j.Rewrite("fingerprint", replacingFuncs(old))
	if err != nil {
		t.Fatal(err)
	}
	if done.Changes != 10 || done.DeadLetters != 1 || done.Broken != 1 || done.Bodies == 0 {
		t.Errorf("%+v", done)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if n := countFilesWith(t, dir, old); n > 0 {
		t.Errorf("%d files still hold what was replaced", n)
	}
	if countFilesWith(t, dir, other) == 0 {
		t.Error("the files do not hold what stays")
	}

	r = startJournal(t, options)
	for _, record := range r.readTo(0, 20) {
		want := other
		if record.Offset%2 == 1 {
			want = []byte(`"***"`)
		}
		if !bytes.Equal(record.Change.After, want) {
			t.Errorf("offset %d holds %.20q", record.Offset, record.Change.After)
		}
	}
	cursor, _, err := r.Cursor("main")
	if err != nil || cursor.Low != 1 || cursor.Lanes["l"] != 3 {
		t.Errorf("the cursor is %+v (%v)", cursor, err)
	}
	r.mustAppend(smallObservation("pods", 21))
	r.readTo(20, 21)
	if fingerprint, err := r.Redaction(); err != nil || fingerprint != "fingerprint" {
		t.Errorf("the redaction is %q (%v)", fingerprint, err)
	}
	if again, err := r.Rewrite("fingerprint", replacingFuncs(old)); err != nil || again != (RewriteCounts{}) {
		t.Errorf("a second time: %+v (%v)", again, err)
	}
}

func TestBodyRewrittenToNothingIsDeleted(t *testing.T) {
	options := Options{Dir: t.TempDir()}
	r := startJournal(t, options)
	o := smallObservation("pods", 1)
	o.Bodies = []event.Body{{Key: o.Known[0].Key, UID: "u1", Raw: []byte("x")}}
	r.mustAppend(o)
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.stopAndClose()
	j := openJournal(t, options)
	rewriting := replacingFuncs(nil)
	rewriting.Body = func(of event.Resource, b *event.Body) bool {
		if of != resourceNamed("pods") || b.Key != "p1" {
			t.Errorf("the body is of %v, key %q", of, b.Key)
		}
		b.Raw = nil
		return true
	}
	if _, err := j.Rewrite("", rewriting); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := j.Body("pods", "p1"); ok || err != nil {
		t.Errorf("the body is still there (%v)", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAJournalKeepsItsSecret(t *testing.T) {
	options := Options{Dir: t.TempDir()}
	var secrets [][]byte
	for range 2 {
		j := openJournal(t, options)
		secret, err := j.Secret()
		if err != nil || len(secret) != 32 {
			t.Fatalf("%x %v", secret, err)
		}
		secrets = append(secrets, secret)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(secrets[0], secrets[1]) {
		t.Error("it has another one after a restart")
	}
}
