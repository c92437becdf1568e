package pages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// patience bounds one block, and each wait for what a command prints. It is far above what it takes, and no measurement: a
// block may build the exporter while other packages are built and tested.
const patience = 15 * time.Minute

// command is what has to be seen of a command in the background.
type command struct {
	begins string // of the command, as it is in the page
	ready  string // a regular expression of what it prints once the next block may come
	prints []string
}

// walk is one reading of a page from top to bottom.
type walk struct {
	t        *testing.T
	dir      string // a fresh copy of the checkout
	env      []string
	replaced *strings.Replacer
	commands []command
	started  []*started
	last     string // what tidies up once nothing runs any more, if anything
}

// started is a command in the background.
type started struct {
	block
	command
	process *process.Process
	log     string
}

// newWalk copies the checkout. More places of the pages may be replaced by those of the test, as by strings.NewReplacer.
func newWalk(t *testing.T, s *servers, commands []command, replaced ...string) *walk {
	t.Helper()
	free, err := ports.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	admin, connect := ports.Address(free[0]), ports.Address(free[1])
	w := &walk{t: t, dir: t.TempDir(), commands: commands}
	w.replaced = strings.NewReplacer(append(replaced,
		"127.0.0.1:9092", s.kafka.Address(), "localhost:8080", admin, "127.0.0.1:8083", connect)...)
	w.env = append(os.Environ(), s.env...)
	w.env = append(w.env, "KUBECDC_ADMIN_LISTEN="+admin)
	w.copyCheckout(s.root)
	t.Cleanup(w.end)
	return w
}

// copyCheckout copies what git knows or would add: a newcomer has no more.
func (w *walk) copyCheckout(root string) {
	w.t.Helper()
	list := exec.CommandContext(w.t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		w.t.Fatalf("git ls-files: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) { // removed and not committed
			continue
		}
		w.must(err)
		if strings.HasPrefix(name, "configs/") || strings.HasPrefix(name, "docs/recipes/") {
			content = []byte(w.replaced.Replace(string(content)))
		}
		to := filepath.Join(w.dir, name)
		w.must(os.MkdirAll(filepath.Dir(to), 0o755))
		w.must(os.WriteFile(to, content, 0o644))
	}
}

// follow runs the commands of a page.
func (w *walk) follow(page string) {
	w.t.Helper()
	for _, b := range blocksOf(w.t, w.dir, page) {
		if b.stops != "" {
			w.stop(b)
		}
		if b.background {
			w.start(b)
		} else {
			w.run(b.place, b.text)
		}
	}
}

// run runs a block to its end, which has to be a success.
func (w *walk) run(place, text string) {
	w.t.Helper()
	out, err := w.shell(text)
	if err != nil {
		w.t.Fatalf("%s: %v\n%s\n%s", place, err, text, out)
	}
	w.t.Logf("%s:\n%s%s", place, text, out)
}

// shell runs commands to their end and returns what they print, also when the test is being cleaned up.
func (w *walk) shell(text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", w.replaced.Replace(text))
	shell.Dir, shell.Env = w.dir, w.env
	out, err := shell.CombinedOutput()
	return string(out), err
}

// await runs a command repeatedly until its output matches a regular expression.
func (w *walk) await(text, expression string) {
	w.t.Helper()
	wanted := regexp.MustCompile(expression)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // between two looks
		out, err := w.shell(text)
		if err == nil && wanted.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %v, want %q in\n%s", text, err, expression, out)
		}
	}
}

// start starts a command in the background and waits until it is ready.
func (w *walk) start(b block) *started {
	w.t.Helper()
	s := &started{block: b, log: filepath.Join(w.t.TempDir(), "log")}
	for _, c := range w.commands {
		if strings.HasPrefix(b.text, c.begins) {
			s.command = c
		}
	}
	if s.begins == "" {
		w.t.Fatalf("%s: this test does not know what to expect of %s", b.place, b.text)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	var err error
	s.process, err = process.Start(ctx, process.Options{
		Name: s.begins, Path: "bash", Args: []string{"-c", "exec " + w.replaced.Replace(b.text)}, Dir: w.dir, Env: w.env, Log: s.log,
		Ready: func(context.Context) error { return s.printed(s.ready) }, ReadyTimeout: patience,
	})
	if err != nil {
		w.t.Fatalf("%s: %v", b.place, err)
	}
	w.started = append(w.started, s)
	return s
}

// printed returns nil once the command's output matches the regular expression.
func (s *started) printed(expression string) error {
	text, err := os.ReadFile(s.log)
	if err == nil && !regexp.MustCompile(expression).Match(text) {
		err = fmt.Errorf("%s: %s has not printed %q", s.place, s.begins, expression)
	}
	return err
}

// stop ends the newest command with the beginning that a block gives.
func (w *walk) stop(b block) {
	w.t.Helper()
	for i := len(w.started) - 1; i >= 0; i-- {
		if s := w.started[i]; s.process != nil && strings.HasPrefix(s.text, b.stops) {
			w.must(errors.Join(s.process.Stop(), s.process.Result()))
			s.process = nil
			return
		}
	}
	w.t.Fatalf("%s: %q does not run", b.place, b.stops)
}

// awaitPrints waits until every command has printed what it has to.
func (w *walk) awaitPrints() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for _, s := range w.started {
		for _, expression := range s.prints {
			w.must(s.awaitPrint(ctx, expression))
		}
	}
}

// awaitPrint returns nil once the output matches; a command that has ended prints nothing more.
func (s *started) awaitPrint(ctx context.Context, expression string) error {
	for {
		ended := s.process == nil || hasEnded(s.process)
		err := s.printed(expression)
		if err == nil || ended || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// end ends what still runs, the newest first, and shows what was printed if the test failed.
func (w *walk) end() {
	for i := len(w.started) - 1; i >= 0; i-- {
		s := w.started[i]
		if s.process != nil {
			if err := s.process.Stop(); err != nil {
				w.t.Error(err)
			}
		}
		if text, err := os.ReadFile(s.log); w.t.Failed() {
			w.t.Logf("%s: %s\n%s %v", s.place, s.begins, text[max(0, len(text)-8<<10):], err)
		}
	}
	if out, err := w.shell(w.last); err != nil {
		w.t.Errorf("%s: %v\n%s", w.last, err, out)
	}
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}
