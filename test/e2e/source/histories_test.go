package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

const (
	runsEach   = 6  // runs of the exporter in a history, between which rules are edited
	writesEach = 12 // writes during a run, and between two
)

// fruits are the resources that histories are about, and whether they live in namespaces.
var fruits = map[string]bool{"apples": true, "pears": true, "crates": false}

// orchards are groups with all fruits; a history has one of them to itself.
var (
	orchards = make(chan *orchard, 4)
	plant    sync.Once
)

// orchard is a group with all fruits.
type orchard struct {
	group string
	laid  bool
}

func (o *orchard) kind(plural string) workload.Kind {
	return custom(o.group, "v1", plural, kindOf(plural))
}

func kindOf(plural string) string {
	return strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
}

// lay defines the fruits, once.
func (o *orchard) lay(t *testing.T, env *environment) {
	t.Helper()
	if o.laid {
		return
	}
	each(t, slices.Sorted(maps.Keys(fruits)), func(ctx context.Context, plural string) error {
		return env.cluster.Install(ctx, workload.Definition{
			Group: o.group, Plural: plural, Kind: kindOf(plural), Versions: []string{"v1", "v2"}, ClusterScoped: !fruits[plural],
		})
	})
	o.laid = true
}

// TestRandomEditsOfRulesKeepTheTableRight lets objects live while rules are edited at random between runs of the exporter,
// which end in order or by SIGKILL. The table that is built from the stream must be the selection as etcd has it; nothing is
// deleted that exists and is selected; nothing is told twice.
func TestRandomEditsOfRulesKeepTheTableRight(t *testing.T) {
	env := control(t)
	plant.Do(func() {
		for i := range cap(orchards) {
			orchards <- &orchard{group: fmt.Sprintf("orchard%d.kubecdc.io", i)}
		}
	})
	for _, namespace := range []string{"fruit-a", "fruit-b", "fruit-c"} {
		if err := env.cluster.CreateNamespace(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	seed := seed(t)
	for n := range number(t, "KUBECDC_E2E_HISTORIES", 8) {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			o := <-orchards
			defer func() { orchards <- o }()
			o.lay(t, env)
			h := &history{scene: newScene(t, env, nil), orchard: o, rnd: rand.New(rand.NewPCG(seed, uint64(n))), objects: map[bus.Object]bool{}}
			h.live()
		})
	}
}

// number is what a variable says, for a run at full size.
func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	given := os.Getenv(variable)
	if given == "" {
		return usual
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number", variable, given)
	}
	return n
}

// seed draws a seed, and prints what repeats it.
func seed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("KUBECDC_E2E_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("KUBECDC_E2E_SEED: %v", err)
		}
	}
	t.Logf("KUBECDC_E2E_SEED=%d repeats the random choices", seed)
	return seed
}

// history is one life of an orchard.
type history struct {
	*scene
	*orchard
	rnd     *rand.Rand
	objects map[bus.Object]bool // that exist
	steps   int
	begin   int64 // etcd's revision before
	runs    []run
}

// run is one of the exporter.
type run struct {
	picks  picks
	killed bool
	told   int   // records when it ended
	end    int64 // etcd's revision then
}

func (h *history) live() {
	var err error
	h.begin, err = h.etcd.Revision(h.t.Context())
	h.must(err)
	defer h.clear()
	defer func() {
		if h.t.Failed() {
			for i, r := range h.runs {
				h.t.Logf("run %d (killed: %t), %d records, until %d: %v", i, r.killed, r.told, r.end, r.picks)
			}
		}
	}()
	var rules picks
	for _, plural := range slices.Sorted(maps.Keys(fruits)) {
		rules = append(rules, drawPick(h.rnd, plural))
	}
	h.write(writesEach)
	for i := range runsEach {
		killed := i < runsEach-1 && h.rnd.IntN(3) == 0
		h.run(rules, killed)
		h.write(h.rnd.IntN(writesEach))
		rules = rules.edited(h.rnd)
	}
	h.judge()
}

// run runs the exporter once.
func (h *history) run(rules picks, killed bool) {
	h.t.Helper()
	h.edit(rules.rules(h.group)...)
	h.runs = append(h.runs, run{picks: rules, killed: killed})
	now := &h.runs[len(h.runs)-1]
	if killed {
		h.must(h.exporter.Launch(h.t.Context()))
		h.write(h.rnd.IntN(3 * writesEach)) // it may be starting, reading, or watching by then
		h.kill()
	} else {
		h.start()
		h.write(writesEach)
		h.awaitAgreement()
		h.touch()
		h.awaitAgreement()
		h.stop()
	}
	now.told = len(h.records)
	var err error
	now.end, err = h.etcd.Revision(h.t.Context())
	h.must(err)
}

// write makes random writes.
func (h *history) write(n int) {
	h.t.Helper()
	for range n {
		plural := slices.Sorted(maps.Keys(fruits))[h.rnd.IntN(len(fruits))]
		o := bus.Object{Group: h.group, Resource: plural, Name: fmt.Sprintf("o%d", h.rnd.IntN(4))}
		if fruits[plural] {
			o.Namespace = oneOf(h.rnd, "fruit-a", "fruit-b", "fruit-c")
		}
		h.must(h.happen(o))
	}
}

// happen lets something happen to an object.
func (h *history) happen(o bus.Object) error {
	ctx, kind := h.t.Context(), h.kind(o.Resource)
	h.steps++
	color, ripe := oneOf(h.rnd, `"red"`, `"blue"`, "null"), oneOf(h.rnd, `"yes"`, "null", "null")
	labels := fmt.Sprintf(`{"metadata":{"labels":{"color":%s,"ripe":%s}}}`, color, ripe)
	switch {
	case !h.objects[o]:
		h.objects[o] = true
		return errors.Join(h.cluster.Create(ctx, kind, o.Namespace, o.Name), h.cluster.Patch(ctx, kind, o.Namespace, o.Name, labels))
	case h.rnd.IntN(4) == 0:
		delete(h.objects, o)
		return h.cluster.Delete(ctx, kind, o.Namespace, o.Name)
	case h.rnd.IntN(2) == 0:
		return h.cluster.Patch(ctx, kind, o.Namespace, o.Name, labels)
	}
	return h.cluster.Change(ctx, kind, o.Namespace, o.Name, h.steps)
}

// touch changes one object of each resource in each namespace: what is told of that comes behind what a list had to tell.
func (h *history) touch() {
	h.t.Helper()
	touched := map[bus.Object]bool{}
	for _, o := range slices.SortedFunc(maps.Keys(h.objects), func(a, b bus.Object) int { return cmp.Compare(a.String(), b.String()) }) {
		if place := (bus.Object{Resource: o.Resource, Namespace: o.Namespace}); !touched[place] {
			touched[place] = true
			h.steps++
			h.must(h.cluster.Change(h.t.Context(), h.kind(o.Resource), o.Namespace, o.Name, h.steps))
		}
	}
}

// clear takes all objects away, for the next history.
func (h *history) clear() {
	for o := range h.objects {
		if err := h.cluster.Delete(context.WithoutCancel(h.t.Context()), h.kind(o.Resource), o.Namespace, o.Name); err != nil {
			h.t.Error(err)
		}
	}
}

// awaitAgreement waits until the table from the stream is the selection that the API server has.
func (h *history) awaitAgreement() {
	h.t.Helper()
	want := h.selection()
	h.await(func() string { return disagreement(want, table(h.t, h.read())) })
}

// selection is what the rules of the last run select of what exists: objects with "uid@resourceVersion".
func (h *history) selection() map[bus.Object]string {
	h.t.Helper()
	rules := h.runs[len(h.runs)-1].picks
	all := map[bus.Object]string{}
	for plural := range fruits {
		list, err := h.cluster.List(h.t.Context(), h.kind(plural))
		h.must(err)
		for _, item := range list {
			o := bus.Object{Group: h.group, Resource: plural, Namespace: item.GetNamespace(), Name: item.GetName()}
			if rules.take(o, item.GetLabels()) {
				all[o] = string(item.GetUID()) + "@" + item.GetResourceVersion()
			}
		}
	}
	return all
}

// table is what a consumer makes of records.
func table(t *testing.T, records []bus.Record) map[bus.Object]string {
	t.Helper()
	var table consumer.Table
	resources := map[consumer.Resource]bool{}
	for _, r := range records {
		record, err := consumer.Parse(r.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Apply(record); err != nil {
			t.Fatal(err)
		}
		if _, ours := fruits[r.Resource]; ours {
			resources[consumer.Resource{Cluster: r.Cluster, Group: r.Group, Resource: r.Resource}] = true
		}
	}
	all := map[bus.Object]string{}
	for resource := range resources {
		for _, o := range table.Objects(resource) {
			all[bus.Object{Group: resource.Group, Resource: resource.Resource, Namespace: o.Namespace, Name: o.Name}] = o.UID + "@" + o.ResourceVersion
		}
	}
	return all
}

// disagreement says in which objects a table differs from what is selected; "" if in none.
func disagreement(want, got map[bus.Object]string) string {
	var lines []string
	for o, version := range want {
		if got[o] != version {
			lines = append(lines, fmt.Sprintf("%v is at %s, in the table at %q", o, version, got[o]))
		}
	}
	for o, version := range got {
		if want[o] == "" {
			lines = append(lines, fmt.Sprintf("%v at %s is in the table and not selected", o, version))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// judge compares all that was told with what happened.
func (h *history) judge() {
	h.t.Helper()
	records := h.once()
	want := h.selectedAt(len(h.runs) - 1)
	if wrong := disagreement(want, table(h.t, records)); wrong != "" {
		h.t.Errorf("who drops what came under the same ID before:\n%s", wrong)
	}
	for o, life := range lives(records) {
		for _, wrong := range sequence(life) {
			h.t.Errorf("%v: %s\n  %s", o, wrong, strings.Join(lines(life), "\n  "))
		}
	}
	h.judgeDeletes()
}

// once is all that was told without what came again under its ID, which only a kill explains, and then word by word.
func (h *history) once() []bus.Record {
	h.t.Helper()
	first := map[string]int{}
	var records []bus.Record
	for i, r := range h.records {
		before, again := first[r.ID]
		if !again {
			first[r.ID] = i
			records = append(records, r)
			continue
		}
		if !bytes.Equal(h.records[before].Payload, r.Payload) {
			h.t.Errorf("two records have the ID %s:\n%s\n%s", r.ID, h.records[before].Payload, r.Payload)
		}
		if !slices.ContainsFunc(h.runs[h.runOf(before):h.runOf(i)], func(r run) bool { return r.killed }) {
			h.t.Errorf("told twice, though nothing was killed in between: %s", r.Payload)
		}
	}
	return records
}

// runOf is the run in which a record was told.
func (h *history) runOf(record int) int {
	return slices.IndexFunc(h.runs, func(r run) bool { return record < r.told })
}

// lives are the records of each object.
func lives(records []bus.Record) map[bus.Object][]bus.Record {
	all := map[bus.Object][]bus.Record{}
	for _, r := range records {
		if _, ours := fruits[r.Resource]; ours && r.Name != "" {
			all[r.Object] = append(all[r.Object], r)
		}
	}
	return all
}

func lines(life []bus.Record) (all []string) {
	for _, r := range life {
		line := fmt.Sprintf("%s %s@%s", r.Type, r.UID, r.ResourceVersion)
		for what, is := range map[string]bool{"coalesced": r.Coalesced, "left": r.Left, "finalStateUnknown": r.FinalStateUnknown} {
			if is {
				line += " " + what
			}
		}
		all = append(all, line)
	}
	return all
}

// sequence says what is wrong with the order of one object's records: it is added when it is not there, updated to what is
// newer, and deleted when it is there.
func sequence(life []bus.Record) (wrong []string) {
	var now *bus.Record
	for i, r := range life {
		switch there := now != nil && now.Type != "deleted"; {
		case (r.Type == "added" || r.Type == "snapshot") && there && now.UID == r.UID:
			wrong = append(wrong, "is there and is added at "+r.ResourceVersion)
		case r.Type == "updated" && (!there || now.UID != r.UID):
			wrong = append(wrong, "is not there and is updated at "+r.ResourceVersion)
		case r.Type == "updated" && r.Revision <= now.Revision:
			wrong = append(wrong, "is updated to what is not newer at "+r.ResourceVersion)
		case r.Type == "deleted" && (!there || now.UID != r.UID):
			wrong = append(wrong, "is not there and is deleted at "+r.ResourceVersion)
		case r.Type == "deleted" && (r.Version == "" || r.Kind == ""):
			wrong = append(wrong, "is deleted without version or kind at "+r.ResourceVersion)
		}
		now = &life[i]
	}
	return wrong
}

// state is an object as etcd had it from a revision on; without a UID it did not exist.
type state struct {
	revision int64
	uid      string
	labels   map[string]string
}

// states are all states that objects have had since the history began.
func (h *history) states() map[bus.Object][]state {
	h.t.Helper()
	var resources []oracle.Resource
	for plural := range fruits {
		resources = append(resources, oracle.Resource{Group: h.group, Resource: plural, Prefix: "/registry/" + h.group + "/" + plural + "/"})
	}
	end, err := h.etcd.Revision(h.t.Context())
	h.must(err)
	past, err := h.etcd.History(h.t.Context(), resources, h.begin, end)
	h.must(err)
	all := map[bus.Object][]state{}
	for _, r := range past.Revisions {
		s := state{revision: r.Revision}
		if r.Op != oracle.Deleted {
			var o struct {
				Metadata struct {
					UID    string
					Labels map[string]string
				}
			}
			h.must(json.Unmarshal(r.Value, &o))
			s.uid, s.labels = o.Metadata.UID, o.Metadata.Labels
		}
		all[r.Object] = append(all[r.Object], s)
	}
	return all
}

// selectedAt is what the rules of a run select of what exists at its end.
func (h *history) selectedAt(n int) map[bus.Object]string {
	h.t.Helper()
	all := map[bus.Object]string{}
	for o, states := range h.states() {
		var now state
		for _, s := range states {
			if s.revision <= h.runs[n].end {
				now = s
			}
		}
		if now.uid != "" && h.runs[n].picks.take(o, now.labels) {
			all[o] = fmt.Sprintf("%s@%d", now.uid, now.revision)
		}
	}
	return all
}

// judgeDeletes checks that whatever was deleted did not exist, or was not selected, at some time of which the record can
// speak: the run in which it was told, with the absence before it, and the runs before that which were killed.
func (h *history) judgeDeletes() {
	h.t.Helper()
	past := h.states()
	for i, r := range h.records {
		if r.Type != "deleted" || r.Group != h.group {
			continue
		}
		legitimate := false
		for n := h.runOf(i); n >= 0 && !legitimate; n-- {
			legitimate = h.absent(past[r.Object], r, n)
			if n == 0 || !h.runs[n-1].killed {
				break
			}
		}
		if !legitimate {
			h.t.Errorf("deleted in run %d, though it existed and was selected all the time: %s", h.runOf(i), r.Payload)
		}
	}
}

// absent says whether what a record deletes was, at any time between the end of the run before and the end of run n, not
// there or not selected by the rules of run n.
func (h *history) absent(states []state, r bus.Record, n int) bool {
	since := h.begin
	if n > 0 {
		since = h.runs[n-1].end
	}
	missing := func(s state) bool { return s.uid != r.UID || !h.runs[n].picks.take(r.Object, s.labels) }
	var at state
	for _, s := range states {
		if s.revision > h.runs[n].end {
			break
		}
		if s.revision > since && (missing(at) || missing(s)) {
			return true
		}
		at = s
	}
	return missing(at)
}
