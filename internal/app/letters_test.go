package app

import (
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// fillWithLetters makes the journal of a stopped exporter: of four objects of sink a the changes are dead letters, one has a
// newer change, and one could not be redacted. Sink b has one.
func fillWithLetters(t *testing.T, dir string) {
	t.Helper()
	j, stop := runJournal(t, dir)
	defer stop()
	resource := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	var letters []event.DeadLetter
	for i, name := range []string{"one", "two", "replaced", "withheld", "replaced"} {
		c := &event.Change{
			Type: event.Updated, Cluster: "c", Resource: resource, Namespace: "shop", Name: name, UID: "u-" + name, ResourceVersion: strconv.Itoa(i + 1),
			After: []byte("{}"),
		}
		if name == "withheld" {
			c.After, c.Withheld = nil, "spec.token"
		}
		mustAppend(t, j, event.Observation{
			Resource: resource, Scope: "pods", Changes: []*event.Change{c},
			Known: []event.Known{{Key: "shop/" + name, UID: c.UID, ResourceVersion: c.ResourceVersion}},
		})
		if i < 4 {
			letters = append(letters, event.DeadLetter{Offset: uint64(i + 1), Reason: "no", Change: c})
		}
	}
	for sink, of := range map[string][]event.DeadLetter{"a": letters, "b": letters[:1]} {
		if err := j.Settle(t.Context(), sink, event.Cursor{Low: 5, High: 5}, of); err != nil {
			t.Fatal(err)
		}
	}
}

// afterLetters is what a journal holds after dead letters were treated.
type afterLetters struct {
	left     map[string][]uint64
	appended []string
	cursors  map[string]event.Cursor
}

// readLetters reads what a journal holds after dead letters were treated.
func readLetters(t *testing.T, dir string) afterLetters {
	t.Helper()
	j, stop := runJournal(t, dir)
	defer stop()
	found := afterLetters{map[string][]uint64{}, nil, map[string]event.Cursor{}}
	for _, sink := range []string{"a", "b"} {
		var err error
		if found.left[sink], err = j.DeadLetterOffsets(sink, 0); err != nil {
			t.Fatal(err)
		}
		if found.cursors[sink], _, err = j.Cursor(sink); err != nil {
			t.Fatal(err)
		}
	}
	for after := uint64(5); after < j.Newest(); {
		records, err := j.Read(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			found.appended = append(found.appended, r.Change.ID()+" for "+r.Change.OnlySink)
			after = r.Offset
		}
	}
	return found
}

// TestDeadLettersAreTreatedAlikeWhetherAnExporterRuns treats the dead letters of two copies of a journal: by a signal, as a
// running exporter does, and by the command for a stopped one. What is said, what is appended for which sink, and what stays
// are the same.
func TestDeadLettersAreTreatedAlikeWhetherAnExporterRuns(t *testing.T) {
	original := t.TempDir()
	fillWithLetters(t, original)
	for _, test := range []struct {
		kind    signals.Kind
		sink    string
		offsets []uint64
		state   signals.State
		result  string
	}{
		{signals.RetryDeadLetters, "a", nil, signals.Done, "2 are delivered in their turn; 1 stay: a newer change"},
		{signals.RetryDeadLetters, "a", []uint64{2, 1, 2}, signals.Done, "2 are delivered in their turn"},
		{signals.RetryDeadLetters, "a", []uint64{3}, signals.Done, "0 are delivered in their turn; 1 stay: "},
		{signals.RetryDeadLetters, "a", []uint64{1, 5}, signals.Refused, `sink "a" has no dead letter at offset 5`},
		{signals.RetryDeadLetters, "gone", nil, signals.Refused, `no sink "gone" is configured; there are: a, b`},
		{signals.DiscardDeadLetters, "a", nil, signals.Done, "4 discarded"},
		{signals.DiscardDeadLetters, "a", []uint64{4, 4}, signals.Done, "1 discarded"},
		{signals.DiscardDeadLetters, "a", []uint64{4, 5}, signals.Refused, `sink "a" has no dead letter at offset 5`},
		{signals.DiscardDeadLetters, "gone", nil, signals.Nothing, "the sink has no dead letters"},
	} {
		request := signals.Request{Kind: test.kind, Sink: test.sink, Offsets: test.offsets, All: test.offsets == nil}
		running, stopped := t.TempDir(), t.TempDir()
		for _, dir := range []string{running, stopped} {
			if err := os.CopyFS(dir, os.DirFS(original)); err != nil {
				t.Fatal(err)
			}
		}
		j, stop := runJournal(t, running)
		byRunning := submitSignal(t, openControl(t, j), request)
		stop()
		byStopped, err := TreatDeadLetters(t.Context(), stopped, request, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		if byRunning.State != test.state || !strings.HasPrefix(byRunning.Result, test.result) {
			t.Errorf("%+v: %s, %q", request, byRunning.State, byRunning.Result)
		}
		if byStopped.State != byRunning.State || byStopped.Result != byRunning.Result || byStopped.Count != byRunning.Count {
			t.Errorf("%+v: of a stopped exporter %s, %q, %d; of a running one %s, %q, %d", request, byStopped.State, byStopped.Result,
				byStopped.Count, byRunning.State, byRunning.Result, byRunning.Count)
		}
		if after, want := readLetters(t, stopped), readLetters(t, running); !reflect.DeepEqual(after, want) {
			t.Errorf("%+v: of a stopped exporter %+v\nof a running one %+v", request, after, want)
		}
	}
}

// TestARetriedDeadLetterIsOneAgainAfterAFailover that its change has not survived, and the answer has announced that.
func TestARetriedDeadLetterIsOneAgainAfterAFailover(t *testing.T) {
	dir := t.TempDir()
	fillWithLetters(t, dir)
	j, stop := runJournal(t, dir)
	defer stop()
	if err := j.SetID(t.Context(), "1.id"); err != nil { // as a take-over does
		t.Fatal(err)
	}
	retried := submitSignal(t, openControl(t, j), signals.Request{Kind: signals.RetryDeadLetters, Sink: "a", Offsets: []uint64{1, 2}})
	if want := "2 are delivered in their turn; if another exporter takes over before that, they are dead letters again"; !strings.HasPrefix(retried.Result, want) {
		t.Errorf("the answer is %q", retried.Result)
	}
	if err := j.Settle(t.Context(), "a", event.Cursor{Low: 6}, nil); err != nil {
		t.Fatal(err)
	}
	seedJournal(t, j)
	if offsets, err := j.DeadLetterOffsets("a", 0); err != nil || !slices.Equal(offsets, []uint64{3, 4, 7}) {
		t.Errorf("the dead letters are %v, %v", offsets, err)
	}
}
