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

// appendText appends text to the file.
func (r *logReader) appendText(text string) {
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

// awaitLoss waits for a loss, and expects exactly one, with these words.
func (r *logReader) awaitLoss(words string) {
	r.t.Helper()
	awaitCondition(r.t, "a loss: "+words, func() bool {
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

func (r *logReader) expectNoLoss() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lost) > 0 {
		r.t.Errorf("lost: %q", r.lost)
	}
}

// TestTruncatedLogIsReadFromStart truncates the file, as logrotate can, and writes more than before until the reader looks
// again: the size alone does not reveal it.
func TestTruncatedLogIsReadFromStart(t *testing.T) {
	for name, away := range map[string]bool{"while it is read": false, "without a reader": true} {
		t.Run(name, func(t *testing.T) {
			r := startedLog(t)
			stop := r.startReader()
			r.addEvents("a")
			r.awaitEvents("a")
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
				text, want = text+eventLine(id), append(want, id)
			}
			if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil { // truncates
				t.Fatal(err)
			}
			if away {
				stop = r.startReader()
			}
			r.awaitEvents(want...)
			r.awaitLoss("truncated")
			stop()
		})
	}
}

// TestEveryRotatedFileIsRead rotates several times between two looks.
func TestEveryRotatedFileIsRead(t *testing.T) {
	for name, away := range map[string]bool{"while it is read": false, "without a reader": true} {
		t.Run(name, func(t *testing.T) {
			r := startedLog(t)
			stop := r.startReader()
			if away {
				stop()
			}
			for i, id := range []string{"a", "b", "c"} {
				r.addEvents(id)
				r.rotateLog(fmt.Sprintf("2026-01-01T00-00-0%d.000", i))
			}
			r.addEvents("d")
			if away {
				stop = r.startReader()
			}
			r.awaitEvents("a", "b", "c", "d")
			r.expectNoLoss()
			stop()
		})
	}
}

// TestRotationDuringLossReportLosesNothing rotates a log between finding its last file and reading it.
func TestRotationDuringLossReportLosesNothing(t *testing.T) {
	for name, lose := range map[string]func(*logReader){
		"compressed": func(r *logReader) {
			r.rotateLog("2026-01-01T00-00-00.000")
			dir, now := filepath.Dir(r.path), time.Now()
			last, compressed := filepath.Join(dir, "audit-2026-01-01T00-00-00.000.log"), filepath.Join(dir, "audit-2026-01-01T00-00-01.000.log.gz")
			err := os.WriteFile(compressed, nil, 0o600)
			err = errors.Join(err, os.Chtimes(last, now, now.Add(-time.Hour)), os.Chtimes(compressed, now, now.Add(-time.Minute)))
			if err != nil {
				t.Fatal(err)
			}
			r.addEvents("b")
		},
		"gone": func(r *logReader) {
			if err := os.Remove(r.path); err != nil {
				t.Fatal(err)
			}
			r.addEvents("b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startedLog(t)
			lose(r)
			r.beforeLoss = func() {
				r.rotateLog("2026-01-01T00-00-02.000")
				r.addEvents("c")
			}
			defer r.startReader()()
			r.awaitEvents("b", "c")
		})
	}
	t.Run("cut", func(t *testing.T) {
		r := startedLog(t)
		cut := make(chan struct{})
		r.beforeLoss = func() {
			<-cut
			r.rotateLog("2026-01-01T00-00-02.000")
			r.addEvents("c")
		}
		defer r.startReader()()
		r.addEvents("a")
		r.awaitEvents("a")
		if err := os.WriteFile(r.path, []byte(eventLine("b")), 0o600); err != nil { // truncates
			t.Error(err)
		}
		close(cut)
		r.awaitEvents("a", "b", "c")
	})
}

func TestLogRotatedByLogrotateIsFollowed(t *testing.T) {
	r := startedLog(t)
	r.addEvents("a")
	if err := os.Rename(r.path, r.path+".1"); err != nil {
		t.Fatal(err)
	}
	r.addEvents("b")
	defer r.startReader()()
	r.awaitEvents("a", "b")
	r.expectNoLoss()
}

func TestUnreadCompressedLogIsReportedAsLoss(t *testing.T) {
	r := startedLog(t)
	r.addEvents("a")
	if err := os.Rename(r.path, filepath.Join(filepath.Dir(r.path), "audit-2026-01-01T00-00-00.000.log.gz")); err != nil {
		t.Fatal(err)
	}
	r.addEvents("b")
	defer r.startReader()()
	r.awaitEvents("b")
	r.awaitLoss("compressed")
}

// TestLogCreatedLaterIsReadFromStart starts before the API server has written anything.
func TestLogCreatedLaterIsReadFromStart(t *testing.T) {
	r := newLogReader(t)
	f := r.newFile()
	defer r.runReader(f)()
	awaitCondition(t, "it is missed", func() bool { status, _ := f.Status(); return !status.OK() })
	r.addEvents("a")
	r.awaitEvents("a")
	r.expectNoLoss()
}

// TestPartialLineAtFirstStartIsReadComplete starts in the middle of a line, and stops there again.
func TestPartialLineAtFirstStartIsReadComplete(t *testing.T) {
	r := newLogReader(t)
	r.addEvents("old")
	text := eventLine("a")
	r.appendText(text[:40])
	stop := r.startReader()
	awaitCondition(t, "it is begun", func() bool { at, err := r.storedPosition(r.path); return err == nil && at != "" })
	stop()
	stop = r.startReader()
	r.appendText(text[40:60])
	stop()
	defer r.startReader()()
	r.appendText(text[60:])
	r.awaitEvents("a")
	r.expectNoLoss()
}

func TestSwappedSymlinkIsFollowed(t *testing.T) {
	r := newLogReader(t)
	dir := t.TempDir()
	link := r.path
	r.path = filepath.Join(dir, "first")
	r.addEvents("old")
	if err := os.Symlink(r.path, link); err != nil {
		t.Fatal(err)
	}
	r.path = link
	stop := r.startReader()
	awaitCondition(t, "it is begun", func() bool { at, err := r.storedPosition(link); return err == nil && at != "" })
	r.addEvents("a")
	r.path = filepath.Join(dir, "second")
	r.addEvents("b")
	if err := os.Symlink(r.path, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents("a", "b")
	r.expectNoLoss()
	stop()
}

// TestMalformedLineIsReportedAsLoss writes a long event, which is read, one that is too long, and half of one, as a killed
// API server leaves it before the first event of its successor.
func TestMalformedLineIsReportedAsLoss(t *testing.T) {
	r := startedLog(t)
	defer r.startReader()()
	r.appendText(`{"auditID":"long","stage":"ResponseComplete","responseObject":{"a":"` + strings.Repeat("x", 2<<20) + "\"}}\n")
	r.awaitEvents("long")
	r.expectNoLoss()
	r.appendText(`{"auditID":"too long","stage":"ResponseComplete","responseObject":{"a":"` + strings.Repeat("x", 9<<20) + "\"}}\n")
	r.addEvents("a")
	r.awaitEvents("long", "a")
	r.awaitLoss("not audit events")
	r.appendText(`{"auditID":"ha` + eventLine("b"))
	r.addEvents("c")
	r.awaitEvents("long", "a", "c")
	if r.mu.Lock(); len(r.lost) != 2 {
		t.Errorf("lost: %q", r.lost)
	}
	r.mu.Unlock()
}
