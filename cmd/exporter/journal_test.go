package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// change makes the n-th change of the test journal: pods, and every third one a Deployment.
func change(n int) *event.Change {
	c := &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "prod", Namespace: "shop", Name: fmt.Sprint("web-", n),
		Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		UID:      fmt.Sprint("u", n), ResourceVersion: fmt.Sprint(100 + n),
		ObservedAt: time.Date(2026, 1, 2, 3, 4, n, 0, time.UTC), After: fmt.Appendf(nil, `{"kind":"Pod","n":%d}`, n),
	}
	if n%3 == 0 {
		c.Resource = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	}
	return c
}

// writeJournal makes the journal of a stopped exporter: nine changes, sink bus at 4 with two dead letters, sink main at 9.
func writeJournal(t *testing.T, dir string) {
	t.Helper()
	fillJournal(t, dir, func(ctx context.Context, j *journal.Journal, do func(error)) {
		for n := 1; n <= 9; n++ {
			do(j.Append(ctx, observationOf(change(n))))
		}
		do(j.Flush(ctx))
		at := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
		do(j.Settle(ctx, "main", event.Cursor{Low: 9}, nil))
		do(j.Settle(ctx, "bus", event.Cursor{Low: 4, Lanes: map[string]uint64{"7": 6}, Layout: "x"}, []event.DeadLetter{
			{Offset: 2, Time: at, Reason: "message of 2 MB is larger than max_payload", Change: change(2)},
			{Offset: 3, Time: at.Add(time.Second), Reason: "refused:\n\"no\"", Change: change(3)},
		}))
	})
}

// storeDeadLetter makes the journal of a stopped exporter with one change, which is a dead letter of sink bus.
func storeDeadLetter(t *testing.T, dir string, c *event.Change, reason string) {
	t.Helper()
	fillJournal(t, dir, func(ctx context.Context, j *journal.Journal, do func(error)) {
		do(j.Append(ctx, observationOf(c)))
		do(j.Flush(ctx))
		do(j.Settle(ctx, "bus", event.Cursor{Low: 1}, []event.DeadLetter{{Offset: 1, Time: c.ObservedAt, Reason: reason, Change: c}}))
	})
}

// observationOf returns the observation of one change.
func observationOf(c *event.Change) event.Observation {
	return event.Observation{
		Resource: c.Resource, Scope: c.Resource.String(), Changes: []*event.Change{c}, Position: c.ResourceVersion,
		Known: []event.Known{{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}},
	}
}

// fillJournal opens a journal, lets fill write to it, and closes it. fill passes every error on.
func fillJournal(t *testing.T, dir string, fill func(ctx context.Context, j *journal.Journal, do func(error))) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir, Declaration: journal.Declaration{Sinks: []string{"bus", "main"}}, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	fill(ctx, j, do)
	stop()
	do(errors.Join(<-done, j.Close()))
	if t.Failed() {
		t.FailNow()
	}
}

// read runs a command that must succeed and leave no trace in dir.
func read(t *testing.T, dir string, args ...string) (stdout, stderr string) {
	t.Helper()
	journaltest.RequireUnchanged(t, dir, func() {
		var code exit.Code
		if code, stdout, stderr = try(t, args...); code != exit.OK {
			t.Fatalf("%v: exit %d, stderr %q", args, code, stderr)
		}
	})
	return stdout, stderr
}

func TestJournalStatSaysWhatThereIs(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	stdout, _ := read(t, dir, "journal", "stat", "--dir", dir)
	stdout = regexp.MustCompile(`[0-9.]+ (B|KiB|MiB)`).ReplaceAllString(stdout, "SIZE")
	stdout = regexp.MustCompile(` {2,}`).ReplaceAllString(stdout, "  ")
	want := "journal  " + dir + `
changes  1 to 9 (9)
retained  SIZE
on disk  SIZE

sink/bus DeadLettersKept: 2 changes were permanently rejected and are kept as dead letters. Effect: they are missing at the destination. Remedy: exporter deadletters list --sink bus has the reasons; then retry or discard them.

RESOURCE  VERSION  KNOWN  BODIES
deployments.apps  v1  3 (SIZE)  0
pods  v1  6 (SIZE)  0

SCOPE  POSITION
deployments.apps  109
pods  108

SINK  CURSOR  BACKLOG  DEAD LETTERS
bus  4  5  2 (SIZE)
main  9  0  0
`
	if stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}
}

func TestJournalStatComparesWithTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	path := write(t, "c.yaml", "resources: [{select: [pods]}]\nsinks: [{name: main, stdout: {}}, {name: fresh, stdout: {path: x}}]\njournal: {dir: "+dir+"}\n")
	stdout, _ := read(t, dir, "journal", "stat", "--config", path)
	for _, want := range []string{`(?m)^bus \(not configured\) +4 +- +2 \(`, `(?m)^fresh +- +9 +0$`, `(?m)^main +9 +0 +0$`} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("no line like %s in\n%s", want, stdout)
		}
	}
}

// TestJournalStatHasTheConditionsOfARunningExporter has bounds that what is stored has reached.
func TestJournalStatHasTheConditionsOfARunningExporter(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	j, err := journal.OpenOffline(dir)
	must(t, err)
	s, err := j.Stat()
	must(t, errors.Join(err, j.Close()))
	var codes []string
	for _, c := range s.Conditions(s.RetainedBytes, s.Sinks[0].DeadBytes) {
		if c.Remedy == "" || c.Effect == "" || c.Cause == "" {
			t.Errorf("%+v", c)
		}
		codes = append(codes, c.Name()+" "+string(c.Code))
	}
	if got, want := strings.Join(codes, ", "), "journal JournalFull, journal DeadLettersFull, sink/bus DeadLettersKept"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if all := condition.Summarize(s.Conditions(2*s.RetainedBytes, 2*s.Sinks[0].DeadBytes)); len(all) != 1 {
		t.Errorf("below the bounds: %+v", all)
	}
}

func TestJournalStatAsJSON(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	stdout, _ := read(t, dir, "journal", "stat", "--dir", dir, "-o", "json")
	var got inspect.JournalReport
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	must(t, d.Decode(&got))
	if got.Dir != dir || got.Oldest != 1 || got.Newest != 9 || got.Changes != 9 || got.RetainedBytes <= 0 || got.DiskBytes <= 0 || len(got.Resources) != 2 {
		t.Errorf("%+v", got)
	}
	if len(got.Sinks) != 2 || *got.Sinks[0].Cursor != 4 || *got.Sinks[0].Backlog != 5 || got.Sinks[0].LanesAhead != 1 || got.Sinks[0].DeadLetters != 2 || got.Sinks[0].Configured != nil {
		t.Errorf("sinks %s", stdout)
	}
}

func TestJournalDumpPrintsEveryChangeUnderItsOffset(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	var want strings.Builder
	for n := 1; n <= 9; n++ {
		fmt.Fprintf(&want, "{\"offset\":%d,\"change\":%s}\n", n, format.AppendJSON(nil, change(n)))
	}
	stdout, stderr := read(t, dir, "journal", "dump", "--dir", dir)
	if stdout != want.String() || stderr != "" {
		t.Errorf("got\n%s\nwant\n%s\nstderr %q", stdout, want.String(), stderr)
	}
}

func TestJournalDumpSelects(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	for _, c := range []struct{ args, offsets, note string }{
		{"--from 8", "8 9", ""},
		{"--to 2", "1 2", ""},
		{"--from 3 --to 3", "3", ""},
		{"--limit 2", "1 2", ""},
		{"--resource deployments.apps", "3 6 9", ""},
		{"--resource deployments.apps --limit 1 --from 4", "6", ""},
		{"--resource deployments.apps,pods --to 3", "1 2 3", ""},
		{"--resource deployments", "", ""},
		{"--from 10", "", "exporter: the journal holds the changes 1 to 9 only\n"},
	} {
		stdout, stderr := read(t, dir, append([]string{"journal", "dump", "--dir", dir}, strings.Fields(c.args)...)...)
		var offsets []string
		for line := range strings.Lines(stdout) {
			var r struct{ Offset uint64 }
			must(t, json.Unmarshal([]byte(line), &r))
			offsets = append(offsets, fmt.Sprint(r.Offset))
		}
		if got := strings.Join(offsets, " "); got != c.offsets || stderr != c.note {
			t.Errorf("%s: offsets %q, stderr %q; want %q, %q", c.args, got, stderr, c.offsets, c.note)
		}
	}
}

func TestCommandsOnTheJournalExplainWhatTheyCannotDo(t *testing.T) {
	dir, none := t.TempDir(), filepath.Join(t.TempDir(), "none")
	writeJournal(t, dir)
	for _, c := range []struct {
		args string
		code exit.Code
		says string
	}{
		{"journal", exit.Usage, "stat or dump"},
		{"journal stat", exit.Usage, "config"},
		{"journal stat --dir a --config b", exit.Usage, "config"},
		{"journal stat -o yaml --dir " + dir, exit.Usage, "expected one of text, json"},
		{"journal dump --from 5 --to 4 --dir " + dir, exit.Usage, "--from 5 is above --to 4"},
		{"journal stat --dir " + none, exit.Environment, "no journal here: " + none},
		{"deadletters", exit.Usage, "list, show, retry or discard"},
		{"deadletters list --dir " + dir, exit.Usage, "sink"},
		{"deadletters list --sink buss --dir " + dir, exit.Usage, "there are: bus, main"},
		{"deadletters show --sink bus --dir " + dir, exit.Usage, "arg"},
		{"deadletters show 0 --sink bus --dir " + dir, exit.Usage, `"0" is not an offset`},
		{"deadletters show 4 --sink bus --dir " + dir, exit.Usage, "no dead letter at offset 4"},
		{"deadletters discard --sink bus --dir " + dir, exit.Usage, "--all"},
		{"deadletters discard 2 --all --sink bus --dir " + dir, exit.Usage, "--all"},
		{"deadletters discard 2 4 --sink bus --dir " + dir, exit.Usage, "is refused: sink \"bus\" has no dead letter at offset 4"},
		{"deadletters discard --all --sink bus --dir " + none, exit.Environment, "no journal here: " + none},
	} {
		code, stdout, stderr := try(t, strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit %d and %q", c.args, code, stdout, stderr, c.code, c.says)
		}
	}
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made: %v", err)
	}
}

func TestABrokenJournalIsReportedAndLeftAsItIs(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	manifests, _ := filepath.Glob(filepath.Join(dir, "store", "MANIFEST-*"))
	if len(manifests) == 0 {
		t.Fatal("no manifest to remove")
	}
	for _, path := range manifests {
		must(t, os.Remove(path))
	}
	for _, args := range []string{"journal stat", "journal dump", "deadletters list --sink bus", "deadletters show 2 --sink bus", "deadletters discard --all --sink bus"} {
		journaltest.RequireUnchanged(t, filepath.Join(dir, "store"), func() {
			code, _, stderr := try(t, append(strings.Fields(args), "--dir", dir)...)
			if code != exit.Runtime || !strings.Contains(stderr, "journal is broken: "+dir) {
				t.Errorf("%s: exit %d, stderr %q; want exit 1 and the directory named", args, code, stderr)
			}
		})
	}
}

// holdJournal is the environment variable that makes a child process hold a journal.
const holdJournal = "EXPORTER_TEST_HOLD_JOURNAL"

func TestWhileAnExporterRunsItsJournalIsNotRead(t *testing.T) {
	if dir := os.Getenv(holdJournal); dir != "" {
		hold(dir)
	}
	dir := t.TempDir()
	writeJournal(t, dir)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), holdJournal+"="+dir)
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	must(t, errors.Join(inErr, outErr, cmd.Start()))
	defer func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	for _, args := range []string{"journal stat", "journal dump", "deadletters list --sink bus", "deadletters show 2 --sink bus", "deadletters discard --all --sink bus"} {
		code, stdout, stderr := try(t, append(strings.Fields(args), "--dir", dir)...)
		if code != exit.Environment || stdout != "" || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "stop the exporter first") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit 3 and what to do", args, code, stdout, stderr)
		}
	}
}

// hold opens a journal, prints a line, and ends the process when its standard input ends.
func hold(dir string) {
	if _, err := journal.Open(journal.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func TestCommandsThatPrintBodiesSayThatSecretsAreAmongThem(t *testing.T) {
	for _, args := range []string{"journal dump --help", "deadletters show --help"} {
		if code, stdout, _ := try(t, strings.Fields(args)...); code != exit.OK || !strings.Contains(stdout, "Secret") {
			t.Errorf("%s: exit %d\n%s", args, code, stdout)
		}
	}
}
