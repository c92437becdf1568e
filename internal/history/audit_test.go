package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
)

// inspected is what Kubernetes History Inspector reads of an event of an audit log.
type inspected struct {
	Kind, Stage, Verb, RequestURI string
	StageTimestamp                time.Time
	ObjectRef                     struct{ APIGroup, APIVersion, Resource, Namespace, Name string }
	User                          struct{ Username string }
	ResponseStatus                struct{ Code int }
	ResponseObject                *struct {
		Kind     string
		Metadata struct{ Name, ResourceVersion string }
	}
}

// TestAnAuditLogHasTheStatesOfTheCluster: random histories; their events are read by our own reader, which is strict, and
// folded as a program does that orders them by time.
func TestAnAuditLogHasTheStatesOfTheCluster(t *testing.T) {
	deletes, authors, gaps := 0, 0, 0
	for seed := range uint64(8) {
		w := newWorld(t, seed)
		w.run(120, seed%4 > 0)
		h := w.open()
		var out, beside bytes.Buffer
		p := Printer{Out: &out, Beside: &beside, Format: Audit}
		if err := h.Log(t.Context(), LogOptions{Objects: true}, p.PrintEntry); err != nil {
			t.Fatal(err)
		}
		state, last := map[string]string{}, time.Time{}
		for line := range strings.Lines(out.String()) {
			strict, err := audit.Scan([]byte(line))
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			var e inspected
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if !strict.IsWrite() || e.Kind != "Event" || e.Stage != audit.Complete || e.ObjectRef.APIVersion == "" || e.ResponseStatus.Code/100 != 2 || !e.StageTimestamp.After(last) {
				t.Fatalf("it is skipped, or out of order: %s", line)
			}
			last = e.StageTimestamp
			if e.User.Username == "alice" {
				authors++
			}
			of := e.ObjectRef.Resource + " " + e.ObjectRef.Namespace + "/" + e.ObjectRef.Name
			if deleted := e.ResponseObject == nil; deleted != (e.Verb == "delete") {
				t.Fatalf("%s: %s", e.Verb, line)
			} else if deleted {
				deletes++
				delete(state, of)
				continue
			}
			if e.ResponseObject.Metadata.Name != e.ObjectRef.Name {
				t.Fatalf("the object of another one: %s", line)
			}
			state[of] = e.ResponseObject.Metadata.ResourceVersion
		}
		want := map[string]string{}
		for key, v := range w.alive {
			want[key.Resource+" "+key.Namespace+"/"+key.Name] = fmt.Sprint(v.version)
		}
		if !maps.Equal(state, want) {
			t.Errorf("seed %d: the events end with\n%v\nthe cluster with\n%v", seed, state, want)
		}
		for line := range strings.Lines(beside.String()) {
			if gaps++; !strings.HasPrefix(line, "! ") || !strings.Contains(line, "unknown") {
				t.Error(line)
			}
		}
	}
	t.Logf("%d deletes, %d authors, %d gaps", deletes, authors, gaps)
	if deletes < 50 || authors < 50 || gaps < 5 {
		t.Error("too few to be meaningful")
	}
}

// TestATimelineIsTheEndOfTheLog, in random histories, with the number of what is older.
func TestATimelineIsTheEndOfTheLog(t *testing.T) {
	for seed := range uint64(8) {
		w := newWorld(t, seed)
		w.run(120, seed%4 > 0)
		h := w.open()
		for _, s := range []Scope{{}, {Namespace: "shop"}, {Types: resources[:1], Namespace: "ops", Name: "o1"}} {
			o, most := LogOptions{Scope: s}, 1+w.rnd.IntN(60)
			if w.rnd.IntN(2) == 0 {
				o.Since = w.moment()
			}
			var want []string
			if err := h.Log(t.Context(), o, func(e *Entry) error { want = append(want, e.line()); return nil }); err != nil {
				t.Fatal(err)
			}
			lines, older, err := h.Timeline(t.Context(), o, most)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range lines {
				got = append(got, l.String())
			}
			slices.Reverse(got)
			if n := max(0, len(want)-most); older != n || !slices.Equal(got, want[n:]) {
				t.Errorf("seed %d, %s, %d: %d older, and\n%s\nthe log has\n%s", seed, s, most, older, strings.Join(got, ""), strings.Join(want, ""))
			}
		}
	}
}
