package audit_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// append writes text behind the file.
func (r *reading) append(text string) {
	r.t.Helper()
	f, err := os.OpenFile(r.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		r.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// saysLost waits until exactly one loss is said, with these words in it.
func (r *reading) saysLost(words string) {
	r.t.Helper()
	await(r.t, "a loss is said: "+words, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.lost) > 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lost) != 1 || !strings.Contains(r.lost[0], words) {
		r.t.Errorf("lost: %q, want %q", r.lost, words)
	}
}

func (r *reading) losesNothing() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lost) > 0 {
		r.t.Errorf("lost: %q", r.lost)
	}
}

// TestALogThatWasEmptiedInItsPlaceIsReadAnew copies and truncates, as logrotate can, and writes more than was there before
// the reader looks again: the size alone does not tell.
func TestALogThatWasEmptiedInItsPlaceIsReadAnew(t *testing.T) {
	for name, away := range map[string]bool{"while it is read": false, "while nobody reads": true} {
		t.Run(name, func(t *testing.T) {
			r := begun(t)
			stop := r.run()
			r.add("a")
			r.await("a")
			if away {
				stop()
			}
			info, err := os.Stat(r.path)
			if err != nil {
				t.Fatal(err)
			}
			text, want := "", []string{"a"}
			for i := 0; int64(len(text)) <= 2*info.Size(); i++ {
				id := fmt.Sprint("new-", i)
				text, want = text+event(id), append(want, id)
			}
			if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil { // truncates
				t.Fatal(err)
			}
			if away {
				stop = r.run()
			}
			r.await(want...)
			r.saysLost("cut")
			stop()
		})
	}
}

// TestALogRotatedManyTimesBetweenTwoLooksIsReadWhole has every rotated file read that is still there.
func TestALogRotatedManyTimesBetweenTwoLooksIsReadWhole(t *testing.T) {
	for name, away := range map[string]bool{"while it is read": false, "while nobody reads": true} {
		t.Run(name, func(t *testing.T) {
			r := begun(t)
			stop := r.run()
			if away {
				stop()
			}
			for i, id := range []string{"a", "b", "c"} {
				r.add(id)
				r.rotate(fmt.Sprintf("2026-01-01T00-00-0%d.000", i))
			}
			r.add("d")
			if away {
				stop = r.run()
			}
			r.await("a", "b", "c", "d")
			r.losesNothing()
			stop()
		})
	}
}

// TestALogThatIsRotatedWhileALossIsSaidIsReadWhole rotates a log whose last file is known, but not yet read.
func TestALogThatIsRotatedWhileALossIsSaidIsReadWhole(t *testing.T) {
	for name, lose := range map[string]func(*reading){
		"compressed": func(r *reading) {
			r.rotate("2026-01-01T00-00-00.000")
			dir, now := filepath.Dir(r.path), time.Now()
			last, compressed := filepath.Join(dir, "audit-2026-01-01T00-00-00.000.log"), filepath.Join(dir, "audit-2026-01-01T00-00-01.000.log.gz")
			err := os.WriteFile(compressed, nil, 0o600)
			err = errors.Join(err, os.Chtimes(last, now, now.Add(-time.Hour)), os.Chtimes(compressed, now, now.Add(-time.Minute)))
			if err != nil {
				t.Fatal(err)
			}
			r.add("b")
		},
		"gone": func(r *reading) {
			if err := os.Remove(r.path); err != nil {
				t.Fatal(err)
			}
			r.add("b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := begun(t)
			lose(r)
			r.losing = func() {
				r.rotate("2026-01-01T00-00-02.000")
				r.add("c")
			}
			defer r.run()()
			r.await("b", "c")
		})
	}
	t.Run("cut", func(t *testing.T) {
		r := begun(t)
		cut := make(chan struct{})
		r.losing = func() {
			<-cut
			r.rotate("2026-01-01T00-00-02.000")
			r.add("c")
		}
		defer r.run()()
		r.add("a")
		r.await("a")
		if err := os.WriteFile(r.path, []byte(event("b")), 0o600); err != nil { // truncates
			t.Error(err)
		}
		close(cut)
		r.await("a", "b", "c")
	})
}

func TestALogThatOthersRotateIsFollowed(t *testing.T) {
	r := begun(t)
	r.add("a")
	if err := os.Rename(r.path, r.path+".1"); err != nil {
		t.Fatal(err)
	}
	r.add("b")
	defer r.run()()
	r.await("a", "b")
	r.losesNothing()
}

func TestALogThatWasCompressedUnreadIsSaidToBeLost(t *testing.T) {
	r := begun(t)
	r.add("a")
	if err := os.Rename(r.path, filepath.Join(filepath.Dir(r.path), "audit-2026-01-01T00-00-00.000.log.gz")); err != nil {
		t.Fatal(err)
	}
	r.add("b")
	defer r.run()()
	r.await("b")
	r.saysLost("compressed")
}

// TestALogThatComesLaterIsReadFromItsBeginning begins to read before the API server has written anything.
func TestALogThatComesLaterIsReadFromItsBeginning(t *testing.T) {
	r := newReading(t)
	f := r.file()
	defer r.runFile(f)()
	await(t, "it is missed", func() bool { status, _ := f.Status(); return status.Degraded() != "" })
	r.add("a")
	r.await("a")
	r.losesNothing()
}

// TestALineThatWasHalfWrittenAtTheFirstStartIsReadWhole begins in the middle of a line, and stops there again.
func TestALineThatWasHalfWrittenAtTheFirstStartIsReadWhole(t *testing.T) {
	r := newReading(t)
	r.add("old")
	text := event("a")
	r.append(text[:40])
	stop := r.run()
	await(t, "it is begun", func() bool { at, err := r.place(r.path); return err == nil && at != "" })
	stop()
	stop = r.run()
	r.append(text[40:60])
	stop()
	defer r.run()()
	r.append(text[60:])
	r.await("a")
	r.losesNothing()
}

func TestASymlinkThatIsSwappedIsFollowed(t *testing.T) {
	r := newReading(t)
	dir := t.TempDir()
	link := r.path
	r.path = filepath.Join(dir, "first")
	r.add("old")
	if err := os.Symlink(r.path, link); err != nil {
		t.Fatal(err)
	}
	r.path = link
	stop := r.run()
	await(t, "it is begun", func() bool { at, err := r.place(link); return err == nil && at != "" })
	r.add("a")
	r.path = filepath.Join(dir, "second")
	r.add("b")
	if err := os.Symlink(r.path, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	r.await("a", "b")
	r.losesNothing()
	stop()
}

// TestALineThatIsNoEventIsSaidToBeLost has a long event, which is read, one that is too long, and half of one, as an API
// server that was killed leaves it in front of the first one of its successor.
func TestALineThatIsNoEventIsSaidToBeLost(t *testing.T) {
	r := begun(t)
	defer r.run()()
	r.append(`{"auditID":"long","stage":"ResponseComplete","responseObject":{"a":"` + strings.Repeat("x", 2<<20) + "\"}}\n")
	r.await("long")
	r.losesNothing()
	r.append(`{"auditID":"too long","stage":"ResponseComplete","responseObject":{"a":"` + strings.Repeat("x", 9<<20) + "\"}}\n")
	r.add("a")
	r.await("long", "a")
	r.saysLost("no audit event")
	r.append(`{"auditID":"ha` + event("b"))
	r.add("c")
	r.await("long", "a", "c")
	if r.mu.Lock(); len(r.lost) != 2 {
		t.Errorf("lost: %q", r.lost)
	}
	r.mu.Unlock()
}
