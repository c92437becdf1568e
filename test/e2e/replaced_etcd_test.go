package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/process"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestReplacedEtcdIsDetected first restores etcd from an earlier copy, and then takes another cluster's, behind the same
// address. Two exporters are there, one of which starts again on another cluster.
func TestReplacedEtcdIsDetected(t *testing.T) {
	require.Long(t)
	l := newRestricted(t, webConfigMaps)
	l.grantAll()
	remaining := l.inhabit("remaining.yaml", "fail")
	beginning := l.inhabit("beginning.yaml", "fresh")
	t.Run("an earlier copy", func(t *testing.T) {
		l, remaining, beginning := l.within(t), remaining.within(t), beginning.within(t)
		for _, name := range []string{"kept", "changed", "gone"} {
			l.must(l.cluster.Create(t.Context(), workload.ConfigMaps, "web", name))
		}
		l.stopped(func(dir string) error { return os.CopyFS(dir+"-earlier", os.DirFS(dir)) })
		for _, i := range []*restoredExporter{remaining, beginning} {
			i.begin()
		}
		l.must(l.cluster.Change(t.Context(), workload.ConfigMaps, "web", "changed", 1))
		l.must(l.cluster.Delete(t.Context(), workload.ConfigMaps, "web", "gone"))
		l.must(l.cluster.Create(t.Context(), workload.ConfigMaps, "web", "born"))
		// So much that the API server does not come as far by what it writes itself when it starts.
		load := l.cluster.Start(t.Context(), workload.Plan{
			Namespace: "web", Prefix: "busy", Kinds: []workload.Kind{workload.ConfigMaps}, Clients: clients, Objects: 80, Updates: 11,
		})
		defer load.Stop()
		l.must(load.Wait())
		for _, i := range []*restoredExporter{remaining, beginning} {
			i.awaitAgreement()
		}
		beginning.stop()

		l.stopped(func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.Rename(dir+"-earlier", dir))
		})
		beginning.begin()
		for _, name := range []string{"born", "later"} {
			l.must(l.cluster.Create(t.Context(), workload.ConfigMaps, "web", name))
		}
		for _, i := range []*restoredExporter{remaining, beginning} {
			i.awaitAgreement()
			i.checkRestored()
		}
	})
	t.Run("another cluster", func(t *testing.T) {
		l, remaining, beginning := l.within(t), remaining.within(t), beginning.within(t)
		before := l.uid()
		l.stopped(os.RemoveAll)
		l.must(l.cluster.CreateNamespace(t.Context(), "web"))
		l.must(l.cluster.Create(t.Context(), workload.ConfigMaps, "web", "new"))
		l.grantAll()
		now := l.uid()
		for _, i := range []*restoredExporter{remaining, beginning} {
			i.checkEnded(before, now)
		}
		told := len(remaining.records())
		remaining.checkRefusesToStart(before, now)
		if more := remaining.records()[told:]; len(more) > 0 {
			t.Errorf("told %+v of another cluster", more)
		}

		told = len(beginning.records())
		beginning.begin()
		l.must(l.cluster.Create(t.Context(), workload.ConfigMaps, "web", "later"))
		beginning.awaitEmitted("later")
		beginning.checkRestarted(told, before, now)
		beginning.stop()
	})
}

// grantAll applies what rbac prints.
func (l *restricted) grantAll() {
	l.t.Helper()
	l.apply(l.command("rbac", "--config", l.config))
	l.awaitAccess("")
}

// stopped does something to etcd's data directory while nothing runs there.
func (l *restricted) stopped(do func(dir string) error) {
	l.t.Helper()
	l.must(l.controlPlane.KillAPIServer()) // to stop it waits for open watches
	l.must(l.controlPlane.StopEtcd())
	l.must(do(l.controlPlane.EtcdDir()))
	l.must(l.controlPlane.StartEtcd(l.t.Context()))
	l.must(l.controlPlane.StartAPIServer(l.t.Context()))
}

// uid is that of the cluster.
func (l *restricted) uid() string {
	l.t.Helper()
	var o *unstructured.Unstructured
	l.must(workload.Persist(l.t.Context(), func() (err error) {
		o, err = l.admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(l.t.Context(), "kube-system", metav1.GetOptions{})
		return err
	}))
	return string(o.GetUID())
}

// within is a cluster for a part of a test.
func (l *restricted) within(t *testing.T) *restricted {
	part := *l
	part.t = t
	return &part
}

// restoredExporter is one of several exporters on a cluster.
type restoredExporter struct {
	*restricted
	config  string
	running *started
}

func (l *restricted) inhabit(name, onReplaced string) *restoredExporter {
	l.t.Helper()
	own := l.beside(", onReplaced: " + onReplaced)
	return &restoredExporter{restricted: own, config: own.configure(name), running: &started{}}
}

func (i *restoredExporter) within(t *testing.T) *restoredExporter {
	part := *i
	part.restricted = i.restricted.within(t)
	return &part
}

// begin starts the exporter and waits until it is live.
func (i *restoredExporter) begin() {
	i.t.Helper()
	*i.running = i.until(i.config, i.positioned)
}

func (i *restoredExporter) stop() {
	i.t.Helper()
	i.must(i.running.process.Stop())
}

// records are all emitted records, in order.
func (i *restoredExporter) records() []consumer.Record {
	i.t.Helper()
	var all []consumer.Record
	for line := range strings.Lines(readFile(i.t, i.config+".changes")) {
		if !strings.HasSuffix(line, "\n") { // it is being written
			break
		}
		r, err := consumer.Parse([]byte(line))
		i.must(err)
		all = append(all, r)
	}
	return all
}

func (i *restoredExporter) awaitEmitted(name string) {
	i.t.Helper()
	i.await(i.config+".log", func() string {
		if slices.ContainsFunc(i.records(), func(r consumer.Record) bool { return r.Name == name }) {
			return ""
		}
		return "the object " + name
	})
}

// awaitAgreement waits until a consumer's table equals the API server's content.
func (i *restoredExporter) awaitAgreement() {
	i.t.Helper()
	i.await(i.config+".log", func() string {
		var table consumer.Table
		all := i.records()
		for _, r := range all {
			i.must(table.Apply(r))
		}
		if len(all) == 0 {
			return "the first record"
		}
		want := make(map[string]string)
		list, err := i.admin.Resource(workload.ConfigMaps.Resource).Namespace("web").List(i.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, o := range list.Items {
			want[o.GetName()] = o.GetResourceVersion()
		}
		got := table.Objects(consumer.Resource{Cluster: all[0].Cluster, Resource: "configmaps"})
		for _, o := range got {
			if want[o.Name] != o.ResourceVersion {
				return fmt.Sprintf("%s at %q, it is at %s", o.Name, want[o.Name], o.ResourceVersion)
			}
		}
		if len(got) != len(want) {
			return fmt.Sprintf("%d objects, there are %d", len(want), len(got))
		}
		return ""
	})
}

// checkRestored checks the records after an etcd went back: one gap, and of each object the difference.
func (i *restoredExporter) checkRestored() {
	i.t.Helper()
	told := make(map[string]string)
	var gaps []consumer.Gap
	for _, r := range i.records() {
		told[r.Name] += " " + r.Type
		if r.Type == "gap" {
			gaps = append(gaps, *r.Gap)
		}
	}
	if len(gaps) != 1 || !strings.Contains(gaps[0].Reason, "etcd was restored from a backup") || revision(i.t, gaps[0].From) <= revision(i.t, gaps[0].To) {
		i.t.Errorf("gaps %+v, want one that goes back", gaps)
	}
	for name, want := range map[string]string{
		"kept": " snapshot", "changed": " snapshot updated updated", "gone": " snapshot deleted added", "born": " added deleted added", "later": " added",
	} {
		if told[name] != want {
			i.t.Errorf("%s: told%s, want%s", name, told[name], want)
		}
	}
}

func revision(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkEnded checks that the exporter ends by itself and names both clusters.
func (i *restoredExporter) checkEnded(before, now string) {
	i.t.Helper()
	err := i.running.process.Result()
	if err == nil || !strings.Contains(err.Error(), "exit status 1;") {
		i.t.Errorf("ended with %v, want exit code 1", err)
	}
	i.checkNames(fmt.Sprint(err), before, now)
}

func (i *restoredExporter) checkNames(text, before, now string) {
	i.t.Helper()
	for _, part := range []string{"another cluster", before, now, "onReplaced"} {
		if !strings.Contains(text, part) {
			i.t.Errorf("no %q in\n%s", part, text)
		}
	}
}

func (i *restoredExporter) checkRefusesToStart(before, now string) {
	i.t.Helper()
	code, text, err := exporter.Run(i.t.Context(), i.program, i.dir, "run", "--config", i.config)
	i.must(err)
	if code != 3 {
		i.t.Errorf("exit code %d, want 3", code)
	}
	i.checkNames(text, before, now)
}

// checkRestarted checks the records after so many: a gap that names both clusters, and the objects that exist now.
func (i *restoredExporter) checkRestarted(told int, before, now string) {
	i.t.Helper()
	var got []string
	for _, r := range i.records()[told:] {
		if strings.HasPrefix(r.Type, "snapshot.") {
			continue
		}
		got = append(got, r.Type+" "+r.Name)
		if r.Cluster != now || r.Gap != nil && (!strings.Contains(r.Gap.Reason, before) || !strings.Contains(r.Gap.Reason, now)) {
			i.t.Errorf("%+v, want cluster %s in the place of %s", r, now, before)
		}
	}
	if want := []string{"gap ", "snapshot new", "added later"}; !slices.Equal(got, want) {
		i.t.Errorf("told %q, want %q", got, want)
	}
}

// started is an exporter that runs.
type started struct{ process *process.Process }

// until starts the exporter and waits for a condition.
func (l *restricted) until(config string, reached func() bool) started {
	l.t.Helper()
	p, err := process.Start(l.t.Context(), process.Options{
		Name: "exporter", Path: l.program, Args: []string{"run", "--config", config}, Dir: l.dir, Log: config + ".log", Env: l.env,
	})
	l.must(err)
	l.await(config+".log", func() string {
		if !reached() {
			return "the exporter to be live"
		}
		return ""
	})
	return started{p}
}

// live is on the page of a resource with a stored position: its objects need not be read again.
var live = regexp.MustCompile(`<dt>Position</dt><dd>[0-9]+</dd>`)

func (l *restricted) positioned() bool {
	l.t.Helper()
	return live.MatchString(l.get("/resource?name=configmaps%3Bns%3Dweb"))
}
