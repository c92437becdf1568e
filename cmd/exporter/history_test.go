package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// historyStart is the time of the first row of writeHistory; each row comes a minute after the one before.
var historyStart = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// writeHistory writes the history of a Deployment: listed with 2 replicas, scaled by alice, something lost, scaled again. A
// Pod is listed once and missing in the next list.
func writeHistory(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "history")
	w, err := history.OpenWriter(history.Folder(dir))
	must(t, err)
	defer w.Close() //nolint:errcheck // the test reads what was committed
	deploy := history.Facts{Cluster: "c", Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	pods := history.Facts{Cluster: "c", Version: "v1", Resource: "pods", Kind: "Pod"}
	var rows []history.Row
	add := func(f history.Facts, kind, name, version string, object string, set func(*history.Row)) {
		row := history.Row{Facts: f, Object: object}
		row.Type, row.Name, row.ResourceVersion = kind, name, version
		row.ObservedAt = historyStart.Add(time.Duration(len(rows)) * time.Minute)
		if name != "" {
			row.Namespace, row.UID = "shop", "u-"+name
		}
		if kind == "added" || kind == "updated" || kind == "deleted" {
			row.ChangedAt, row.NotBefore = row.ObservedAt, row.ObservedAt.Add(-time.Second)
		}
		if set != nil {
			set(&row)
		}
		rows = append(rows, row)
	}
	web := func(version string, replicas int, image string) string {
		return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","resourceVersion":%q},`+
			`"spec":{"replicas":%d,"containers":[{"name":"log","image":"l"},{"name":"web","image":%q}]}}`, version, replicas, image)
	}
	add(deploy, "snapshot.begin", "", "", "", nil)
	add(deploy, "snapshot", "web", "10", web("10", 2, "a"), nil)
	add(deploy, "snapshot.end", "", "12", "", nil)
	add(pods, "snapshot.begin", "", "", "", nil)
	add(pods, "snapshot", "p", "11", `{"metadata":{"name":"p"}}`, nil)
	add(pods, "snapshot.end", "", "12", "", nil)
	add(deploy, "updated", "web", "20", web("20", 3, "a"), func(r *history.Row) {
		r.Manager, r.Changed = "kubectl", []history.Difference{{Path: "/metadata/resourceVersion", From: `"10"`, To: `"20"`}, {Path: "/spec/replicas", From: "2", To: "3"}}
	})
	add(deploy, "attributed", "web", "20", "", func(r *history.Row) { r.User, r.Attribution = "alice", "exact" })
	add(deploy, "gap", "", "40", "", func(r *history.Row) { r.GapFrom, r.GapTo, r.GapReason = "25", "40", "history was compacted" })
	add(deploy, "updated", "web", "38", web("38", 3, "b"), func(r *history.Row) {
		r.NotBefore = time.Time{}
		r.Changed = []history.Difference{{Path: "/spec/containers/[name=web]/image", From: `"a"`, To: `"b"`}}
	})
	add(pods, "snapshot.begin", "", "", "", nil)
	add(pods, "snapshot.end", "", "45", "", nil)
	add(deploy, "updated", "web", "50", web("50", 5, "b"), func(r *history.Row) {
		r.Manager, r.Changed = "hpa", []history.Difference{{Path: "/spec/replicas", From: "3", To: "5"}}
	})
	add(deploy, "added", "old", "51", `{"metadata":{"name":"old"}}`, nil)
	add(deploy, history.Left, "old", "51", "", nil)
	b, err := w.NewBatch(rows)
	if err == nil {
		err = b.Commit()
	}
	must(t, err)
	return dir
}

// at is the time of the row with an index, and half a minute.
func at(row int) string {
	return historyStart.Add(time.Duration(row)*time.Minute + 30*time.Second).Format(time.RFC3339)
}

func TestHistoryTellsWhatChangedByWhomFromWhatToWhat(t *testing.T) {
	dir := writeHistory(t)
	for _, c := range []struct {
		args  string
		wants []string // lines have these in this order
		lacks string
	}{
		{"log deploy/web", []string{"· deployments.apps shop/web", "~ deployments.apps shop/web  by alice  spec.replicas: 2 → 3",
			"! deployments.apps  unknown between", "history was compacted", "spec.containers[web].image: a → b", "by hpa  spec.replicas: 3 → 5"}, "resourceVersion"},
		{"log Deployment web -n shop --path spec.replicas", []string{"2 → 3", "3 → 5"}, "image"},
		{"log deployments.apps --by ali*", []string{"2 → 3"}, "3 → 5"},
		{"log --since rv:30 --until rv:49 deploy", []string{"image: a → b"}, "3 → 5"},
		{"log deploy -o audit", []string{`"verb":"update"`, `"username":"alice"`, `"image":"b"`, `"verb":"create"`}, "gap"},
		{"log deploy/old", []string{"+ deployments.apps shop/old", "- deployments.apps shop/old  no longer selected by the rules, and may exist"}, "gone"},
		{"get deploy/web --at rv:60 -o name", []string{"deployment.apps/web"}, "old"},
		{"log po/p", []string{"- pods shop/p  gone: deleted after"}, "deployments"},
		{"get deploy/web --at " + at(5) + " -n shop -o json", []string{`"replicas":2`}, ""},
		{"get deploy web --at rv:20 -o yaml", []string{"replicas: 3"}, ""},
		{"get deploy web --at rv:49 -o name", []string{"deployment.apps/web"}, ""},
		{"get pods --at " + at(6), []string{"NAMESPACE", "shop", "pods/p"}, ""},
		{"get pods --at " + at(11) + " -o json", []string{`"items":[]`}, "\"p\""},
		{"diff deploy/web --from rv:12 --to rv:50", []string{"~ deployments.apps shop/web", "spec.replicas: 2 → 5", "image: a → b"}, "resourceVersion"},
		{"diff po --from " + at(6) + " --to " + at(11), []string{"- pods shop/p"}, "deployments"},
		{"blame deploy/web", []string{"≤", "hpa", "spec.replicas: 5", "spec.containers[log].image: l", "spec.containers[web].image: b"}, "resourceVersion"},
	} {
		code, stdout, stderr := try(t, append([]string{"history"}, append(strings.Fields(c.args), "--dir", dir)...)...)
		rest := stdout
		for _, want := range c.wants {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%s: no %q, or not in its place, in\n%s%s", c.args, want, stdout, stderr)
				break
			}
			rest = after
		}
		if code != exit.OK || c.lacks != "" && strings.Contains(stdout, c.lacks) {
			t.Errorf("%s: exit %d, %s\n%s", c.args, code, stderr, stdout)
		}
	}
}

func TestHistoryHasAllOfAChangeAsJSON(t *testing.T) {
	code, stdout, stderr := try(t, "history", "log", "deploy", "--by", "alice", "-o", "json", "--dir", writeHistory(t))
	var e struct {
		Time, NotBefore                       time.Time
		Type, User, Certainty, Manager, Group string
		Changed                               []struct {
			Path     string
			From, To json.RawMessage
		}
	}
	first, gap, _ := strings.Cut(stdout, "\n")
	if !strings.Contains(gap, `"reason":"history was compacted"`) { // in which she may have changed more
		t.Error(stdout)
	}
	if err := json.Unmarshal([]byte(first), &e); err != nil || code != exit.OK {
		t.Fatalf("exit %d, %v, %s%s", code, err, stdout, stderr)
	}
	if e.User != "alice" || e.Certainty != "exact" || e.Manager != "kubectl" || e.Type != "updated" || len(e.Changed) != 1 || string(e.Changed[0].To) != "3" ||
		!e.Time.Equal(historyStart.Add(6*time.Minute)) || e.NotBefore.IsZero() {
		t.Errorf("%+v", e)
	}
}

// TestHistoryNeverTellsWhatItDoesNotKnow in a gap, and before the first list.
func TestHistoryNeverTellsWhatItDoesNotKnow(t *testing.T) {
	dir := writeHistory(t)
	for _, args := range []string{"get deploy/web --at " + at(7), "get deploy --at rv:30", "get pods --at rv:5", "get pods --at " + at(2),
		"diff deploy --from " + at(7) + " --to rv:50", "get statefulsets --at " + at(7), "get deploy/old --at rv:60", "blame deploy/old"} {
		code, stdout, stderr := try(t, append([]string{"history"}, append(strings.Fields(args), "--dir", dir)...)...)
		if code != exit.Unknown || strings.Contains(stdout, "web") || !strings.Contains(stderr, "! ") && !strings.Contains(stderr, "is no longer selected") || strings.Contains(stdout, "pods/p") {
			t.Errorf("%s: exit %d, %s\n%s", args, code, stderr, stdout)
		}
	}
}

// TestAListSaysWhatHasLeft beside what is known.
func TestAListSaysWhatHasLeft(t *testing.T) {
	dir := writeHistory(t)
	for moment, left := range map[string]bool{"rv:60": true, at(14): true, at(13): false} {
		code, stdout, stderr := try(t, "history", "get", "deploy", "--at", moment, "-o", "name", "--dir", dir)
		if said := strings.Contains(stderr, "deployments.apps shop/old: no longer selected"); said != left || (code == exit.Unknown) != left || !strings.Contains(stdout, "/web") {
			t.Errorf("%s: exit %d, %s\n%s", moment, code, stderr, stdout)
		}
	}
}

func TestHistoryNamesWhatIsWrongWithAQuestion(t *testing.T) {
	dir := writeHistory(t)
	for args, want := range map[string]struct {
		code exit.Code
		text string
	}{
		"get deploymnts --at 1h --dir " + dir:          {exit.Usage, "did you mean deployments"},
		"get pods --at noon --dir " + dir:              {exit.Usage, "expected a time"},
		"get pods --dir " + dir:                        {exit.Usage, `"at" not set`},
		"serve --dir " + dir:                           {exit.Usage, "[at from] is required"},
		"serve --at 1h --speed 2 --dir " + dir:         {exit.Usage, "[at speed]"},
		"serve --from 1h --speed 0 --dir " + dir:       {exit.Usage, "--speed: expected more than 0"},
		"serve --from 1h --until 2h --dir " + dir:      {exit.Usage, "--until: expected a moment after --from"},
		"serve --from 9 --until 7 --dir " + dir:        {exit.Usage, "--from rv:9, found rv:7"},
		"get po/p q --at 1h --dir " + dir:              {exit.Usage, "expected TYPE/NAME"},
		"log -o text --dir " + dir:                     {exit.Usage, "expected one of table"},
		"log --dir " + dir + "/none":                   {exit.Environment, "holds no history"},
		"blame deploy/nope --dir " + dir:               {exit.Runtime, "does not exist now"},
		"get deploy/nope --at rv:50 --dir " + dir:      {exit.Runtime, "did not exist"},
		"get pods -n shop -A --at 1h --dir " + dir:     {exit.Usage, "all-namespaces namespace"},
		"page --dir " + dir:                            {exit.Environment, "no exporter with a history"},
		"page --config " + dir + "/none":               {exit.Usage, "no such file"},
		"get widgets.example.com --at 1h --dir " + dir: {exit.Usage, "no type"},
	} {
		code, stdout, stderr := try(t, append([]string{"history"}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(stderr, want.text) || stdout != "" {
			t.Errorf("%s: exit %d, want %d, %s%s", args, code, want.code, stderr, stdout)
		}
	}
}

// TestRunForAHistoryNeedsNoFile: its configuration has the folder and the journal beside it, and masks Secrets.
func TestRunForAHistoryNeedsNoFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	cfg, err := config.ForHistory(dir)
	must(t, err)
	if len(cfg.Sinks) != 1 || cfg.Sinks[0].History.Dir != dir || cfg.Journal.Dir != dir+".journal" || cfg.File != "" || len(cfg.Warnings) > 0 {
		t.Errorf("%+v, %v", cfg.Sinks, cfg.Warnings)
	}
	for _, args := range [][]string{{"run"}, {"run", "--config", "x", "--history", dir}} {
		if code, _, stderr := try(t, args...); code != exit.Usage || !strings.Contains(stderr, "history") {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
}
