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

// secretBytesOf are bytes that no compression makes look otherwise.
func secretBytesOf(seed uint64) []byte {
	b := make([]byte, 4000)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b) // never fails
	return b
}

// filesWith counts the files under dir in which a part of needle stands.
func filesWith(t *testing.T, dir string, needle []byte) (n int) {
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

// replacing takes old for what is replaced.
func replacing(old []byte) Rewriting {
	with := func(b *[]byte) bool {
		if !bytes.Equal(*b, old) {
			return false
		}
		*b = []byte(`"***"`)
		return true
	}
	return Rewriting{
		Change: func(c *event.Change) bool { return with(&c.After) },
		Body:   func(_ event.Resource, b *event.Body) bool { return with(&b.Raw) },
		Known: func(_ event.Resource, k *event.Known) bool {
			if k.Summary != string(old) {
				return false
			}
			k.Summary = "sealed"
			return true
		},
	}
}

func TestWhatIsRewrittenIsLeftInNoFile(t *testing.T) {
	dir := t.TempDir()
	old, other := secretBytesOf(1), secretBytesOf(2)
	options := Options{Dir: dir, Sinks: []string{"main"}}
	r := start(t, options)
	for n := 1; n <= 20; n++ {
		o := observe("pods", n)
		o.Changes[0].After = old
		if n%2 == 0 {
			o.Changes[0].After = other
		}
		o.Known[0].Summary = string(o.Changes[0].After)
		o.Bodies = []event.Body{{Key: o.Known[0].Key, UID: o.Known[0].UID, Raw: o.Changes[0].After}}
		r.append(o)
		if err := r.Flush(t.Context()); err != nil { // a frame each
			t.Fatal(err)
		}
	}
	letter := journaltest.SmallChange(3)
	letter.After = old
	r.settle("main", event.Cursor{Low: 1, Lanes: map[string]uint64{"l": 3}}, event.DeadLetter{Offset: 3, Time: time.Unix(1, 0), Reason: "r", Change: letter})
	r.end()
	if filesWith(t, dir, old) == 0 {
		t.Fatal("the files do not show what they hold, so nothing is proved")
	}
	if err := os.Mkdir(filepath.Join(dir, brokenPrefix+"-20260102"), 0o750); err != nil {
		t.Fatal(err)
	}

	j := open(t, options)
	done, err := j.Rewrite("fingerprint", replacing(old))
	if err != nil {
		t.Fatal(err)
	}
	if done.Changes != 10 || done.DeadLetters != 1 || done.Broken != 1 || done.Bodies == 0 || done.Known != done.Bodies {
		t.Errorf("%+v", done)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if n := filesWith(t, dir, old); n > 0 {
		t.Errorf("%d files still hold what was replaced", n)
	}
	if filesWith(t, dir, other) == 0 {
		t.Error("the files do not hold what stays")
	}

	r = start(t, options)
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
	r.append(observe("pods", 21))
	r.readTo(20, 21)
	if fingerprint, err := r.Redaction(); err != nil || fingerprint != "fingerprint" {
		t.Errorf("the redaction is %q (%v)", fingerprint, err)
	}
	if again, err := r.Rewrite("fingerprint", replacing(old)); err != nil || again != (Rewritten{}) {
		t.Errorf("a second time: %+v (%v)", again, err)
	}
}

func TestAStateThatBecomesNothingIsDeleted(t *testing.T) {
	options := Options{Dir: t.TempDir()}
	r := start(t, options)
	o := observe("pods", 1)
	o.Bodies = []event.Body{{Key: o.Known[0].Key, UID: "u1", Raw: []byte("x")}}
	r.append(o)
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.end()
	j := open(t, options)
	rewriting := replacing(nil)
	rewriting.Body = func(of event.Resource, b *event.Body) bool {
		if of != resource("pods") || b.Key != "p1" {
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
		j := open(t, options)
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
