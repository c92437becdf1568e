package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	runsPerHistory = 6  // runs of the exporter in a history, with an edit of the rules in between
	writesPerRun   = 12 // writes during a run, and between two runs
)

// fruits are the resources of a history, and whether they are namespaced.
var fruits = map[string]bool{"apples": true, "pears": true, "crates": false}

// fruitGroups is a pool of groups; each history takes one for itself.
var (
	fruitGroups  = make(chan *fruitGroup, 4)
	createGroups sync.Once
)

// fruitGroup is an API group with all fruits.
type fruitGroup struct {
	group     string
	installed bool
}

func (o *fruitGroup) kindFor(plural string) workload.Kind {
	return customKind(o.group, "v1", plural, kindName(plural))
}

func kindName(plural string) string {
	return strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
}

// fruitNamespaces are the namespaces of all fruits.
var fruitNamespaces = []string{"fruit-a", "fruit-b", "fruit-c"}

func createFruitNamespaces(t *testing.T, env *environment) {
	t.Helper()
	for _, namespace := range fruitNamespaces {
		if err := env.cluster.CreateNamespace(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
}

// install defines the fruits, once.
func (o *fruitGroup) install(t *testing.T, env *environment) {
	t.Helper()
	if o.installed {
		return
	}
	forEach(t, slices.Sorted(maps.Keys(fruits)), func(ctx context.Context, plural string) error {
		return env.cluster.Install(ctx, workload.Definition{
			Group: o.group, Plural: plural, Kind: kindName(plural), Versions: []string{"v1", "v2"}, ClusterScoped: !fruits[plural],
		})
	})
	o.installed = true
}

// TestRandomEditsOfRulesKeepTheTableRight writes objects while rules are edited at random between runs of the exporter,
// which end orderly or by SIGKILL. The table built from the stream must be the selection as etcd has it; no object that
// exists and is selected is deleted; nothing is emitted twice.
func TestRandomEditsOfRulesKeepTheTableRight(t *testing.T) {
	require.Long(t)
	env := sharedControlPlane(t)
	createGroups.Do(func() {
		for i := range cap(fruitGroups) {
			fruitGroups <- &fruitGroup{group: fmt.Sprintf("orchard%d.kubecdc.io", i)}
		}
	})
	createFruitNamespaces(t, env)
	seed := randomSeed(t)
	for n := range numberFromEnv(t, "KUBECDC_E2E_HISTORIES", 8) {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			o := <-fruitGroups
			defer func() { fruitGroups <- o }()
			o.install(t, env)
			h := &history{fixture: newFixture(t, env, nil), fruitGroup: o, rnd: rand.New(rand.NewPCG(seed, uint64(n))), objects: map[bus.Object]bool{}}
			h.playHistory()
		})
	}
}

// numberFromEnv returns the number in an environment variable, for a run at full size, or the usual number.
func numberFromEnv(t *testing.T, variable string, usual int) int {
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

// randomSeed draws a seed and logs how to repeat it.
func randomSeed(t *testing.T) uint64 {
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

// history is one random history of a fruitGroup.
type history struct {
	*fixture
	*fruitGroup
	rnd           *rand.Rand
	objects       map[bus.Object]bool // existing objects
	steps         int
	firstRevision int64 // etcd's revision before the history
	runs          []exporterRun
}

// exporterRun is one run of the exporter.
type exporterRun struct {
	picks       rulePicks
	killed      bool
	records     int   // number of records at the end
	endRevision int64 // etcd's revision at the end
}

func (h *history) playHistory() {
	var err error
	h.firstRevision, err = h.etcd.Revision(h.t.Context())
	h.requireNoError(err)
	defer h.deleteObjects()
	defer func() {
		if h.t.Failed() {
			for i, r := range h.runs {
				h.t.Logf("run %d (killed: %t), %d records, until %d: %v", i, r.killed, r.records, r.endRevision, r.picks)
			}
		}
	}()
	var rules rulePicks
	for _, plural := range slices.Sorted(maps.Keys(fruits)) {
		rules = append(rules, drawPick(h.rnd, plural))
	}
	h.writeRandom(writesPerRun)
	for i := range runsPerHistory {
		killed := i < runsPerHistory-1 && h.rnd.IntN(3) == 0
		h.runExporter(rules, killed)
		h.writeRandom(h.rnd.IntN(writesPerRun))
		rules = rules.editRandomly(h.rnd)
	}
	h.checkHistory()
}

// runExporter runs the exporter once.
func (h *history) runExporter(rules rulePicks, killed bool) {
	h.t.Helper()
	h.setRules(rules.toRules(h.group)...)
	h.runs = append(h.runs, exporterRun{picks: rules, killed: killed})
	now := &h.runs[len(h.runs)-1]
	if killed {
		h.requireNoError(h.exporter.Launch(h.t.Context()))
		h.writeRandom(h.rnd.IntN(3 * writesPerRun)) // the exporter may be starting, listing or watching
		h.killExporter()
	} else {
		h.startExporter()
		h.writeRandom(writesPerRun)
		h.awaitAgreement()
		h.touchObjects()
		h.awaitAgreement()
		h.stopExporter()
	}
	now.records = len(h.records)
	var err error
	now.endRevision, err = h.etcd.Revision(h.t.Context())
	h.requireNoError(err)
}

// writeRandom makes n random writes.
func (h *history) writeRandom(n int) {
	h.t.Helper()
	for range n {
		plural := slices.Sorted(maps.Keys(fruits))[h.rnd.IntN(len(fruits))]
		o := bus.Object{Group: h.group, Resource: plural, Name: fmt.Sprintf("o%d", h.rnd.IntN(4))}
		if fruits[plural] {
			o.Namespace = oneOf(h.rnd, fruitNamespaces...)
		}
		h.requireNoError(h.changeRandomly(o))
	}
}

// changeRandomly creates, changes or deletes an object.
func (h *history) changeRandomly(o bus.Object) error {
	ctx, kind := h.t.Context(), h.kindFor(o.Resource)
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

// touchObjects changes one object of each resource in each namespace. The records of these changes follow those of earlier
// lists.
func (h *history) touchObjects() {
	h.t.Helper()
	touched := map[bus.Object]bool{}
	for _, o := range slices.SortedFunc(maps.Keys(h.objects), func(a, b bus.Object) int { return cmp.Compare(a.String(), b.String()) }) {
		if place := (bus.Object{Resource: o.Resource, Namespace: o.Namespace}); !touched[place] {
			touched[place] = true
			h.steps++
			h.requireNoError(h.cluster.Change(h.t.Context(), h.kindFor(o.Resource), o.Namespace, o.Name, h.steps))
		}
	}
}

// deleteObjects deletes all objects, for the next history.
func (h *history) deleteObjects() {
	for o := range h.objects {
		if err := h.cluster.Delete(context.WithoutCancel(h.t.Context()), h.kindFor(o.Resource), o.Namespace, o.Name); err != nil {
			h.t.Error(err)
		}
	}
}

// awaitAgreement waits until the table from the stream is the selection that the API server has.
func (h *history) awaitAgreement() {
	h.t.Helper()
	want := h.currentSelection()
	h.awaitCondition(func() string { return tableDifference(want, tableFrom(h.t, h.readRecords())) })
}

// currentSelection returns the existing objects that the rules of the last run select, with "uid@resourceVersion".
func (h *history) currentSelection() map[bus.Object]string {
	h.t.Helper()
	rules := h.runs[len(h.runs)-1].picks
	all := map[bus.Object]string{}
	for plural := range fruits {
		list, err := h.cluster.List(h.t.Context(), h.kindFor(plural))
		h.requireNoError(err)
		for _, item := range list {
			o := bus.Object{Group: h.group, Resource: plural, Namespace: item.GetNamespace(), Name: item.GetName()}
			if rules.takesObject(o, item.GetLabels()) {
				all[o] = string(item.GetUID()) + "@" + item.GetResourceVersion()
			}
		}
	}
	return all
}

// tableFrom returns the table that a consumer builds from records.
func tableFrom(t *testing.T, records []bus.Record) map[bus.Object]string {
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

// tableDifference describes how a table differs from the selection; "" if it does not.
func tableDifference(want, got map[bus.Object]string) string {
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

// checkHistory compares the records with the history in etcd.
func (h *history) checkHistory() {
	h.t.Helper()
	records := h.recordsWithoutRepeats()
	want := h.selectedAt(len(h.runs) - 1)
	if wrong := tableDifference(want, tableFrom(h.t, records)); wrong != "" {
		h.t.Errorf("the table of a consumer that drops repeated IDs:\n%s", wrong)
	}
	for o, life := range recordsByObject(records) {
		for _, wrong := range sequenceErrors(life) {
			h.t.Errorf("%v: %s\n  %s", o, wrong, strings.Join(recordLines(life), "\n  "))
		}
	}
	h.checkDeletes()
	h.checkForms(records)
}

// recordsWithoutRepeats returns the records without repetitions of an ID. Only a kill explains a repetition, which must be
// identical but for what an edit redacts.
func (h *history) recordsWithoutRepeats() []bus.Record {
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
		if identity := func(r bus.Record) bus.Record {
			r.Before, r.After, r.Payload = nil, nil, nil // an edit in between redacts what waits
			r.Place, r.Appended = "", time.Time{}
			return r
		}; !reflect.DeepEqual(identity(h.records[before]), identity(r)) {
			h.t.Errorf("two records have the ID %s:\n%s\n%s", r.ID, h.records[before].Payload, r.Payload)
		}
		if !slices.ContainsFunc(h.runs[h.runIndex(before):h.runIndex(i)], func(r exporterRun) bool { return r.killed }) {
			h.t.Errorf("emitted twice without a kill in between: %s", r.Payload)
		}
	}
	return records
}

// runIndex returns the run that emitted a record.
func (h *history) runIndex(record int) int {
	return slices.IndexFunc(h.runs, func(r exporterRun) bool { return record < r.records })
}

// recordsByObject returns the records of each object.
func recordsByObject(records []bus.Record) map[bus.Object][]bus.Record {
	all := map[bus.Object][]bus.Record{}
	for _, r := range records {
		if _, ours := fruits[r.Resource]; ours && r.Name != "" {
			all[r.Object] = append(all[r.Object], r)
		}
	}
	return all
}

func recordLines(life []bus.Record) (all []string) {
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

// sequenceErrors describes what is wrong with the order of one object's records: an object is added if it is absent, updated
// to a newer version, and deleted if it is present.
func sequenceErrors(life []bus.Record) (wrong []string) {
	var now *bus.Record
	for i, r := range life {
		switch there := now != nil && now.Type != "deleted"; {
		case (r.Type == "added" || r.Type == "snapshot") && there && now.UID == r.UID:
			wrong = append(wrong, "is present and is added at "+r.ResourceVersion)
		case r.Type == "updated" && (!there || now.UID != r.UID):
			wrong = append(wrong, "is absent and is updated at "+r.ResourceVersion)
		case r.Type == "updated" && r.Revision <= now.Revision:
			wrong = append(wrong, "is updated to a version that is not newer at "+r.ResourceVersion)
		case r.Type == "deleted" && (!there || now.UID != r.UID):
			wrong = append(wrong, "is absent and is deleted at "+r.ResourceVersion)
		case r.Type == "deleted" && (r.Version == "" || r.Kind == ""):
			wrong = append(wrong, "is deleted without version or kind at "+r.ResourceVersion)
		}
		now = &life[i]
	}
	return wrong
}

// objectState is an object as etcd had it from a revision on; without a UID it did not exist.
type objectState struct {
	revision int64
	uid      string
	labels   map[string]string
}

// pastStates returns all states of the objects since the history began.
func (h *history) pastStates() map[bus.Object][]objectState {
	h.t.Helper()
	var resources []oracle.Resource
	for plural := range fruits {
		resources = append(resources, oracle.Resource{Group: h.group, Resource: plural, Prefix: "/registry/" + h.group + "/" + plural + "/"})
	}
	end, err := h.etcd.Revision(h.t.Context())
	h.requireNoError(err)
	past, err := h.etcd.History(h.t.Context(), resources, h.firstRevision, end)
	h.requireNoError(err)
	all := map[bus.Object][]objectState{}
	for _, r := range past.Revisions {
		s := objectState{revision: r.Revision}
		if r.Op != oracle.Deleted {
			var o struct {
				Metadata struct {
					UID    string
					Labels map[string]string
				}
			}
			h.requireNoError(json.Unmarshal(r.Value, &o))
			s.uid, s.labels = o.Metadata.UID, o.Metadata.Labels
		}
		all[r.Object] = append(all[r.Object], s)
	}
	return all
}

// selectedAt returns what the rules of a run select at its end.
func (h *history) selectedAt(n int) map[bus.Object]string {
	h.t.Helper()
	all := map[bus.Object]string{}
	for o, states := range h.pastStates() {
		var now objectState
		for _, s := range states {
			if s.revision <= h.runs[n].endRevision {
				now = s
			}
		}
		if now.uid != "" && h.runs[n].picks.takesObject(o, now.labels) {
			all[o] = fmt.Sprintf("%s@%d", now.uid, now.revision)
		}
	}
	return all
}

// checkDeletes checks that each deleted object was absent, or not selected, at some time that the record can describe:
// during the run that emitted it, the absence before that run, and the preceding runs that were killed.
func (h *history) checkDeletes() {
	h.t.Helper()
	past := h.pastStates()
	for i, r := range h.records {
		if r.Type != "deleted" || r.Group != h.group {
			continue
		}
		legitimate := false
		for n := h.runIndex(i); n >= 0 && !legitimate; n-- {
			legitimate = h.wasAbsent(past[r.Object], r, n)
			if n == 0 || !h.runs[n-1].killed {
				break
			}
		}
		if !legitimate {
			h.t.Errorf("deleted in run %d, although it existed and was selected all the time: %s", h.runIndex(i), r.Payload)
		}
	}
}

// wasAbsent reports whether the object of a delete was absent, or not selected by the rules of run n, at any time between
// the ends of run n-1 and run n.
func (h *history) wasAbsent(states []objectState, r bus.Record, n int) bool {
	since := h.firstRevision
	if n > 0 {
		since = h.runs[n-1].endRevision
	}
	missing := func(s objectState) bool { return s.uid != r.UID || !h.runs[n].picks.takesObject(r.Object, s.labels) }
	var at objectState
	for _, s := range states {
		if s.revision > h.runs[n].endRevision {
			break
		}
		if s.revision > since && (missing(at) || missing(s)) {
			return true
		}
		at = s
	}
	return missing(at)
}
