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

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/process"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const webConfigMaps = "resources: [{select: [configmaps], namespaces: {include: [web]}}]\n"

// TestReplacedEtcdIsDetected restores etcd from an earlier copy, behind the same address, under two exporters, one of which
// is stopped meanwhile. pkg/source has another cluster behind the address.
func TestReplacedEtcdIsDetected(t *testing.T) {
	require.Long(t)
	l := newRestricted(t, webConfigMaps)
	l.grantAll()
	remaining, beginning := l.inhabit("remaining.yaml", "fail"), l.inhabit("beginning.yaml", "fresh")
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
		i.stop()
	}
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

// restoredExporter is one of several exporters on a cluster.
type restoredExporter struct {
	*restricted
	config  string
	running *process.Process
}

func (l *restricted) inhabit(name, onReplaced string) *restoredExporter {
	l.t.Helper()
	own := l.beside(", onReplaced: " + onReplaced)
	return &restoredExporter{restricted: own, config: own.configure(name)}
}

// begin starts the exporter and waits until it is live.
func (i *restoredExporter) begin() {
	i.t.Helper()
	i.running = i.until(i.config, i.positioned)
}

func (i *restoredExporter) stop() {
	i.t.Helper()
	i.must(i.running.Stop())
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

// until starts the exporter and waits for a condition.
func (l *restricted) until(config string, reached func() bool) *process.Process {
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
	return p
}

// live is on the page of a resource with a stored position: its objects need not be read again.
var live = regexp.MustCompile(`<dt>Position</dt><dd>[0-9]+</dd>`)

func (l *restricted) positioned() bool {
	l.t.Helper()
	return live.MatchString(l.get("/resource?name=configmaps%3Bns%3Dweb"))
}
