package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/format"
)

func TestDeadLettersAreListedWithTheirReason(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	stdout, stderr := read(t, dir, "deadletters", "list", "--sink", "bus", "--dir", dir)
	want := `OFFSET  TIME                  TYPE     RESOURCE          OBJECT      REASON
2       2026-01-02T04:00:00Z  updated  pods              shop/web-2  message of 2 MB is larger than max_payload
3       2026-01-02T04:00:01Z  updated  deployments.apps  shop/web-3  refused: "no"
`
	if stdout != want || stderr != "" {
		t.Errorf("got\n%s\nwant\n%s\nstderr %q", stdout, want, stderr)
	}
	stdout, _ = read(t, dir, "deadletters", "list", "--sink", "bus", "--dir", dir, "-o", "json")
	want = `{"offset":2,"time":"2026-01-02T04:00:00Z","reason":"message of 2 MB is larger than max_payload","id":"prod/u2/102/updated","type":"updated","resource":"pods","namespace":"shop","name":"web-2"}
{"offset":3,"time":"2026-01-02T04:00:01Z","reason":"refused:\n\"no\"","id":"prod/u3/103/updated","type":"updated","resource":"deployments.apps","namespace":"shop","name":"web-3"}
`
	if stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}
}

func TestADeadLetterIsShownWithItsWholeChange(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	stdout, _ := read(t, dir, "deadletters", "show", "3", "--sink", "bus", "--dir", dir)
	var got struct {
		Offset uint64
		Time   string
		Reason string
		Change json.RawMessage
	}
	must(t, json.Unmarshal([]byte(stdout), &got))
	if got.Offset != 3 || got.Time != "2026-01-02T04:00:01Z" || got.Reason != "refused:\n\"no\"" || string(got.Change) != string(format.AppendJSON(nil, change(3))) {
		t.Errorf("%s", stdout)
	}
	if strings.Count(stdout, "\n") != 1 {
		t.Errorf("more than one line: %q", stdout)
	}
}

func TestDiscardedDeadLettersAreGoneAndNothingElseIs(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	dump, _ := read(t, dir, "journal", "dump", "--dir", dir)
	for _, step := range []struct{ discard, says, left string }{
		{"3", "deadletters.discard of sink bus: done: 1 discarded\n", "2"},
		{"--all", "deadletters.discard of sink bus: done: 1 discarded\n", ""},
		{"--all", "deadletters.discard of sink bus: nothing: the sink has no dead letters\n", ""},
	} {
		code, stdout, stderr := try(t, "deadletters", "discard", step.discard, "--sink", "bus", "--dir", dir)
		if code != exit.OK || stdout != step.says {
			t.Fatalf("%+v: exit %d, stdout %q, stderr %q", step, code, stdout, stderr)
		}
		list, _ := read(t, dir, "deadletters", "list", "--sink", "bus", "--dir", dir, "-o", "json")
		var left []string
		for line := range strings.Lines(list) {
			var d struct{ Name string }
			must(t, json.Unmarshal([]byte(line), &d))
			left = append(left, strings.TrimPrefix(d.Name, "web-"))
		}
		if got := strings.Join(left, " "); got != step.left {
			t.Errorf("%+v: left %q", step, got)
		}
	}
	if after, _ := read(t, dir, "journal", "dump", "--dir", dir); after != dump {
		t.Errorf("the changes are\n%s\nwere\n%s", after, dump)
	}
	if stat, _ := read(t, dir, "journal", "stat", "--dir", dir); !strings.Contains(stat, "bus    4        5         0\n") {
		t.Errorf("the cursor moved:\n%s", stat)
	}
}
