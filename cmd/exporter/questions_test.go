package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	historysink "github.com/kubecdc/kubecdc/pkg/sinks/history"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// The questions of the page, in its order.
const (
	recent = iota
	scaled
	moment
	latency
	drift
	deleted
	rights
	unproven
	unknown
	images
	cost
	noisiest
	questions
)

var (
	deployments = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	pods        = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	bindings    = event.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings", Kind: "RoleBinding"}
)

const gitOps = "argocd-controller"

// scripted is a cluster that knows what happens in it, and what an exporter passes to its sink.
type scripted struct {
	rnd     *rand.Rand
	now     time.Time
	recent  time.Time // changes from then on are recent
	version int
	batch   []sinks.Message
	offset  uint64
	all     []*scriptedObject
	alive   []*scriptedObject
	truth   [questions][]string
	changes map[string]int // by object
	doubted map[string]int // changes without a proven author, by resource and manager
	ran     map[string]*span
	cores   map[string]float64 // core hours by namespace
}

// scriptedObject is an object as it was emitted last, and what its next state is made of.
type scriptedObject struct {
	event.Change
	image    string
	replicas int
	millis   int // requested cores
	created  time.Time
	applied  bool   // by the manager of GitOps, at least once
	user     string // author of the last change
	edits    []edit
}

// edit is a change of a spec, and what it is known by.
type edit struct{ at, user, manager, path, old, new string }

// span is from when to when an image ran.
type span struct{ since, until time.Time }

// TestTheQuestionsHaveTheirAnswers: DuckDB and ClickHouse answer the queries of the page, and the exporter its commands, as
// the cluster knows it. The history has large files and small ones, changes without a proven author, changes that nothing
// watched, and objects that are missing in a later list.
func TestTheQuestionsHaveTheirAnswers(t *testing.T) {
	require.Integration(t)
	python, err := build.ClickHouse(t.Context())
	must(t, err)
	dir := t.TempDir()
	c, at := playScript(t, filepath.Join(dir, "history"))
	blocks := regexp.MustCompile("(?s)```(?:sql|sh) tested by TestTheQuestionsHaveTheirAnswers\n(.*?)```").FindAllStringSubmatch(textOf(t, "../../docs/questions.md"), -1)
	var text strings.Builder
	for _, block := range blocks[1:] {
		text.WriteString(strings.ReplaceAll(block[1], "2026-11-28 12:00:00", clock(at)))
	}
	queries := strings.SplitAfter(strings.TrimSuffix(text.String(), "\n"), ";\n")
	if len(queries) != questions {
		t.Fatalf("the page has %d queries", len(queries))
	}
	var files []string
	for i, query := range queries {
		if lines := strings.Count(query, "\n"); lines > 10 {
			t.Errorf("query %d has %d lines", i, lines)
		}
		files = append(files, fmt.Sprint(i))
		writeFile(t, filepath.Join(dir, files[i]), query)
	}
	for _, dialect := range []string{"duckdb", "clickhouse"} {
		views := filepath.Join(dir, dialect)
		_, text, stderr := try(t, "sql", "--for", dialect+"-history")
		writeFile(t, views, text)
		command := exec.CommandContext(t.Context(), python, append([]string{mustAbs(t, "testdata/questions.py"), dialect, views}, files...)...)
		command.Dir = dir
		var errs bytes.Buffer
		command.Stderr = &errs
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", dialect, err, stderr, errs.String())
		}
		for question, want := range c.truth {
			var got []string
			for line := range strings.Lines(string(out)) {
				if row, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), fmt.Sprint(question, "|")); ok {
					got = append(got, row)
				}
			}
			compareAnswers(t, fmt.Sprint(dialect, ", question ", question), got, want)
		}
	}
	compareCommands(t, c, blocks[0][1], filepath.Join(dir, "history"), at)
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}

func compareAnswers(t *testing.T, which string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if len(want) < 2 || !slices.Equal(got, want) {
		t.Errorf("%s: %d rows, want %d\n%s\nwant\n%s", which, len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// compareCommands runs the commands of the page, which show no more and no fewer changes or objects than the truth.
func compareCommands(t *testing.T, c *scripted, block, dir string, at time.Time) {
	t.Helper()
	commands := strings.Split(strings.TrimSpace(block), "\n")
	for i, question := range []int{recent, scaled, moment} {
		line := strings.ReplaceAll(strings.TrimPrefix(commands[i], "exporter "), "'2026-11-28T12:00:00Z'", at.Format(time.RFC3339))
		_, stdout, stderr := try(t, append(strings.Fields(line), "--dir", dir)...)
		var names, wanted []string
		for row := range strings.Lines(stdout) {
			if shown := regexp.MustCompile(`\b(?:ops|shop)[ /]+(?:deployments\S*/)?(\w+)`).FindStringSubmatch(row); shown != nil && !strings.Contains(row, " gone") {
				names = append(names, shown[1])
			}
		}
		for _, row := range c.truth[question] {
			wanted = append(wanted, regexp.MustCompile(`\b(?:ops|shop)\|(\w+)`).FindStringSubmatch(row)[1])
		}
		compareAnswers(t, line+"\n"+stderr, names, wanted)
	}
}

// playScript writes the history of two days, and returns the cluster with its truth and the moment that it is asked about.
func playScript(t *testing.T, dir string) (c *scripted, at time.Time) {
	t.Helper()
	today := time.Now().UTC().Truncate(time.Second)
	c = &scripted{rnd: rand.New(rand.NewPCG(44, 45)), now: today.Add(-50 * time.Hour), recent: today.Add(-30 * time.Minute),
		version: 100, changes: map[string]int{}, doubted: map[string]int{}, ran: map[string]*span{}, cores: map[string]float64{}}
	for _, resource := range []event.Resource{deployments, deployments, pods, pods} {
		o := c.create(resource)
		c.version++
		o.ResourceVersion, o.After = fmt.Sprint(c.version), o.state(time.Time{})
		c.start(o)
	}
	c.list()
	c.live(150)
	c.store(t, dir)
	c.now = today.Add(-27 * time.Hour)
	c.live(60)
	c.store(t, dir)
	c.now = today.Add(-4 * time.Hour)
	c.leave()
	c.live(120)
	at = c.now
	for _, o := range c.alive {
		if o.Resource == deployments {
			c.tell(moment, o.Namespace, o.Name, string(o.After))
		}
	}
	c.pass(5)
	c.losePods()
	c.live(60)
	c.now = c.recent.Add(12 * time.Minute) // they are recent for as long, however slow the test is
	c.live(15)
	c.conclude()
	c.store(t, dir)
	if m, err := history.ReadManifest(history.Folder(dir)); err != nil || !slices.ContainsFunc(m.Files, func(f history.File) bool { return f.Alive > 0 }) {
		t.Fatalf("%+v, %v", m, err)
	}
	return c, at
}

// store passes to the sink what was not passed yet, and merges the files of the history.
func (c *scripted) store(t *testing.T, dir string) {
	t.Helper()
	s, err := historysink.New(historysink.Config{Dir: dir})
	must(t, err)
	for part := range slices.Chunk(c.batch, 100) {
		if n, err := s.Publish(t.Context(), "rows", part); n != len(part) || err != nil {
			t.Fatalf("%d of %d, %v", n, len(part), err)
		}
	}
	must(t, s.Close(t.Context()))
	c.batch = nil
	w, err := history.OpenWriter(history.Folder(dir))
	must(t, err)
	defer w.Close() //nolint:errcheck // the test reads what was committed
	for more := true; more; {
		if more, err = w.Compact(true); err != nil {
			t.Fatal(err)
		}
	}
}

func clock(t time.Time) string { return t.UTC().Format(time.DateTime) }

func (c *scripted) pass(seconds int) { c.now = c.now.Add(time.Duration(seconds) * time.Second) }

// tell keeps a row of an answer.
func (c *scripted) tell(question int, columns ...any) {
	row := make([]string, len(columns))
	for i, column := range columns {
		row[i] = cmp.Or(fmt.Sprint(column), "None")
	}
	c.truth[question] = append(c.truth[question], strings.Join(row, "|"))
}

// one returns one of several texts.
func (c *scripted) one(of ...string) string { return of[c.rnd.IntN(len(of))] }

// create returns an object that is not emitted yet.
func (c *scripted) create(resource event.Resource) *scriptedObject {
	c.version++
	o := &scriptedObject{image: c.one("nginx:1.27", "redis:8", "busybox"), replicas: 1, millis: c.rnd.IntN(8) * 250, created: c.now}
	o.Change = event.Change{Cluster: "c", Resource: resource, Namespace: c.one("shop", "ops"), Name: fmt.Sprint("o", c.version), UID: fmt.Sprint("u", c.version)}
	c.all, c.alive = append(c.all, o), append(c.alive, o)
	return o
}

// state returns the object as JSON; of a Pod, whether it is ready.
func (o *scriptedObject) state(ready time.Time) []byte {
	spec := fmt.Sprintf(`"spec":{"replicas":%d,"image":%q}`, o.replicas, o.image)
	switch o.Resource {
	case bindings:
		spec = fmt.Sprintf(`"subjects":[{"kind":"User","name":"user%d"}]`, o.replicas)
	case pods:
		quantity := fmt.Sprintf("%dm", o.millis)
		if o.millis%1000 == 0 {
			quantity = fmt.Sprint(o.millis / 1000)
		}
		spec = fmt.Sprintf(`"spec":{"containers":[{"name":"a","image":%q,"resources":{"requests":{"cpu":%q}}},{"name":"b","image":"sidecar"}]},`+
			`"status":{"phase":"Pending"}`, o.image, quantity)
		if !ready.IsZero() {
			spec = strings.Replace(spec, `"Pending"`, fmt.Sprintf(`"Running","conditions":[{"type":"PodScheduled","status":"True","lastTransitionTime":%q},`+
				`{"lastTransitionTime":%q,"status":"True","type":"Ready"}]`, o.created.Format(time.RFC3339), ready.Format(time.RFC3339)), 1)
		}
	}
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"creationTimestamp":%q},%s}`, o.Name, o.Namespace, o.created.Format(time.RFC3339), spec)
}

// emit passes a record to the sink.
func (c *scripted) emit(change event.Change) {
	change.Cluster, change.ObservedAt = "c", c.now
	c.offset++
	c.batch = append(c.batch, sinks.Message{Offset: c.offset, Change: &change})
}

// list emits a whole snapshot of what exists.
func (c *scripted) list() {
	for _, resource := range []event.Resource{deployments, pods} {
		frame := event.Change{Type: event.SnapshotBegin, Resource: resource, Snapshot: &event.SnapshotInfo{ID: fmt.Sprint("s", c.version)}}
		c.emit(frame)
		for _, o := range c.alive {
			if o.Resource == resource {
				seen := o.Change
				seen.Type, seen.Snapshot, seen.ChangedAt, seen.Changed = event.Snapshot, frame.Snapshot, event.ChangeTime{}, nil
				c.emit(seen)
			}
		}
		frame.Type, frame.ResourceVersion = event.SnapshotEnd, fmt.Sprint(c.version)
		c.emit(frame)
	}
}

// start notes that the containers of a Pod run.
func (c *scripted) start(o *scriptedObject) {
	for _, image := range []string{o.image, "sidecar"} {
		if s := c.ran[image]; o.Resource == pods && s == nil {
			c.ran[image] = &span{since: c.now}
		}
	}
}

// end notes that an object is gone.
func (c *scripted) end(o *scriptedObject) {
	c.alive = slices.DeleteFunc(c.alive, func(other *scriptedObject) bool { return other == o })
	if o.Resource != pods {
		return
	}
	for _, image := range []string{o.image, "sidecar"} {
		c.ran[image].until = c.now
	}
	c.cores[o.Namespace] += float64(o.millis) / 1000 * c.now.Sub(o.created).Hours()
}

// change emits a change of an object, and perhaps its author behind it.
func (c *scripted) change(kind event.Type, o *scriptedObject, manager string, after []byte) {
	c.version++
	before := o.After
	o.Type, o.ResourceVersion, o.After, o.Changed, o.Actor = kind, fmt.Sprint(c.version), after, nil, nil
	o.ChangedAt = event.ChangeTime{At: c.now, NotBefore: c.now.Add(-time.Second), Source: event.TimeFromManagedFields}
	if kind == event.Deleted {
		manager = ""
	}
	if manager != "" {
		o.Actor = &event.Actor{Manager: manager}
	}
	if kind == event.Updated {
		o.Changed = diff.Values(before, after)
	}
	c.emit(o.Change)
	user, certainty := c.one("alice", "bob", "carol", ""), event.Exact
	if user != "" {
		author := o.Change
		author.Type, author.After, author.Changed, author.Actor, author.ChangedAt = event.Attributed, nil, nil, nil, event.ChangeTime{}
		author.Attribution = &event.Attribution{By: event.Identity{User: user}, Certainty: event.Exact}
		c.emit(author)
	} else {
		certainty = ""
	}
	o.user, o.applied = user, o.applied || manager == gitOps
	c.note(o, user, certainty, manager)
}

// note keeps what is true of a change.
func (c *scripted) note(o *scriptedObject, user, certainty, manager string) {
	object := fmt.Sprintf("%s|%s|%s", o.Resource.Resource, o.Namespace, o.Name)
	if c.changes[object]++; certainty != event.Exact {
		c.doubted[o.Resource.Resource+"|"+cmp.Or(manager, "None")]++
	}
	if c.now.After(c.recent) {
		c.tell(recent, clock(c.now), o.Type, object, user, certainty, manager)
	}
	if o.Type == event.Deleted {
		c.tell(deleted, clock(c.now), object, user)
	}
	if o.Resource == bindings {
		c.tell(rights, clock(c.now), o.Type, object, user, string(o.After))
	}
}

// live lets so many things happen.
func (c *scripted) live(steps int) {
	for range steps {
		c.pass(5 + c.rnd.IntN(40))
		o := c.alive[c.rnd.IntN(len(c.alive))]
		switch resource := o.Resource; {
		case len(c.alive) < 8 || c.rnd.IntN(4) == 0:
			c.add([]event.Resource{deployments, pods, pods, bindings}[c.rnd.IntN(4)])
		case c.rnd.IntN(5) == 0:
			c.change(event.Deleted, o, "", nil)
			c.end(o)
		case resource == deployments:
			c.edit(o)
		case resource == bindings:
			o.replicas++
			c.change(event.Updated, o, "kubectl", o.state(time.Time{}))
		}
	}
}

// add creates an object; a Pod becomes ready.
func (c *scripted) add(resource event.Resource) {
	o := c.create(resource)
	c.change(event.Added, o, c.one("kubectl", gitOps), o.state(time.Time{}))
	if c.start(o); resource == pods {
		c.pass(1 + c.rnd.IntN(30))
		c.change(event.Updated, o, "kubelet", o.state(c.now))
		c.tell(latency, o.Namespace, o.Name, int(c.now.Sub(o.created).Seconds()))
	}
}

// edit scales a Deployment, or changes its image.
func (c *scripted) edit(o *scriptedObject) {
	from, to, path, manager := fmt.Sprint(o.replicas), fmt.Sprint(o.replicas+1), "/spec/replicas", c.one("kubectl-edit", gitOps, "")
	if c.rnd.IntN(2) == 0 {
		o.replicas++
	} else {
		next := "app:" + fmt.Sprint(c.version)
		from, to, path = fmt.Sprintf("%q", o.image), fmt.Sprintf("%q", next), "/spec/image"
		o.image = next
	}
	c.change(event.Updated, o, manager, o.state(time.Time{}))
	o.edits = append(o.edits, edit{clock(c.now), o.user, manager, path, from, to})
}

// leave has edited rules no longer select a Deployment, which is no delete.
func (c *scripted) leave() {
	i := slices.IndexFunc(c.alive, func(o *scriptedObject) bool { return o.Resource == deployments && o.replicas > 1 })
	left := c.alive[i].Change
	left.Type, left.Left, left.After, left.Changed, left.Actor, left.ChangedAt = event.Deleted, true, nil, nil, nil, event.ChangeTime{}
	left.FinalStateUnknown, left.Coalesced, left.Pass = true, true, "edit"
	c.emit(left)
	c.end(c.alive[i])
}

// losePods has two Pods deleted while nothing watches: one by a list of what changed, one by its absence in a whole list.
func (c *scripted) losePods() {
	gap := event.Change{Type: event.Gap, Resource: pods, ResourceVersion: fmt.Sprint(c.version + 9),
		Gap: &event.GapInfo{From: fmt.Sprint(c.version), To: fmt.Sprint(c.version + 9), Reason: "history was compacted"}}
	c.version += 9
	for _, kind := range []event.Type{event.Gap, event.AttributionGap} {
		gap.Type = kind
		c.emit(gap)
		c.tell(unknown, clock(c.now), kind, "pods", gap.Gap.Reason)
	}
	var lost []*scriptedObject
	for _, o := range c.alive {
		if o.Resource == pods && o.user != "" {
			lost = append(lost, o)
		}
	}
	seen := lost[0].Change
	seen.Type, seen.After, seen.Changed, seen.Actor, seen.Pass = event.Deleted, nil, nil, nil, "list"
	seen.FinalStateUnknown, seen.Coalesced = true, true
	seen.ChangedAt = event.ChangeTime{At: c.now, NotBefore: c.now.Add(-time.Minute), Source: event.TimeFromWatch}
	lost[0].Change = seen
	c.emit(seen)
	c.note(lost[0], "", "", "")
	c.end(lost[0])
	c.pass(60)
	c.end(lost[1])
	c.list()
}

// conclude ends the Pods that request something, and tells what is known at the end.
func (c *scripted) conclude() {
	for _, o := range slices.Clone(c.alive) {
		if o.Resource == pods && o.millis > 0 {
			c.change(event.Deleted, o, "", nil)
			c.end(o)
		}
	}
	for image, s := range c.ran {
		until := clock(s.until)
		if slices.ContainsFunc(c.alive, func(o *scriptedObject) bool {
			return o.Resource == pods && (o.image == image || image == "sidecar")
		}) {
			until = ""
		}
		c.tell(images, image, clock(s.since), until)
	}
	for _, o := range c.all {
		for _, e := range o.edits {
			if e.path == "/spec/replicas" {
				c.tell(scaled, e.at, "deployments", o.Namespace, o.Name, e.user, e.old, e.new)
			}
			if o.applied && e.manager != gitOps {
				c.tell(drift, e.at, "deployments", o.Namespace, o.Name, e.user, e.manager, e.path, e.old, e.new)
			}
		}
	}
	for namespace, hours := range c.cores {
		c.tell(cost, namespace, math.Round(hours*1000)/1000)
	}
	for of, n := range c.doubted {
		c.tell(unproven, of, n)
	}
	most := slices.SortedFunc(maps.Keys(c.changes), func(a, b string) int {
		return cmp.Or(c.changes[b]-c.changes[a], cmp.Compare(a, b))
	})
	for _, object := range most[:10] {
		c.tell(noisiest, object, c.changes[object])
	}
}
