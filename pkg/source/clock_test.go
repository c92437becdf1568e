package source

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// writes are what a writer did while nothing was watched: the times of each request and of its answer.
type writes map[string][2]time.Time

func (w writes) do(what string, request func()) {
	sent := time.Now()
	request()
	w[what] = [2]time.Time{sent, time.Now()}
}

// writeForAWhile creates, changes and deletes secrets for that time, some of which existed, and renews a Lease meanwhile.
func (p *controlPlane) writeForAWhile(t *testing.T, run string, total time.Duration, existing []string) writes {
	t.Helper()
	const lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	body := func(version string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q},"spec":{"renewTime":%q}}`, run, version,
			time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	renewed := p.request(t, "POST", lease, body(""))
	done, pace := writes{}, time.NewTicker(250*time.Millisecond)
	defer pace.Stop()
	for end, n := time.Now().Add(total), 0; time.Now().Before(end); n++ {
		name := fmt.Sprint(run, "-w", n)
		done.do("added "+name, func() { p.createSecret(t, name) })
		done.do("updated "+name, func() { p.updateSecret(t, name, "1") })
		if n%2 == 0 {
			done.do("deleted "+name, func() { p.deleteSecret(t, name) })
		}
		if n%5 == 0 && len(existing) > 1 {
			done.do("updated "+existing[0], func() { p.updateSecret(t, existing[0], "1") })
			done.do("deleted "+existing[1], func() { p.deleteSecret(t, existing[1]) })
			existing = existing[2:]
		}
		if n%4 == 0 {
			renewed = p.request(t, "PUT", lease+"/"+run, body(renewed))
		}
		<-pace.C
	}
	return done
}

// TestAChangeThatIsReadLateHasTheTimeItWasMade: each interval holds the request that made the change, and is narrow. It is
// read by a watch, or by a list because the history is gone. AWAY_SECONDS is how long nothing is watched.
func TestAChangeThatIsReadLateHasTheTimeItWasMade(t *testing.T) {
	away, err := strconv.Atoi(cmp.Or(os.Getenv("AWAY_SECONDS"), "10"))
	if err != nil {
		t.Fatal(err)
	}
	p := startControlPlane(t)
	for name, compacted := range map[string]bool{"watched": false, "listed": true} {
		t.Run(name, func(t *testing.T) { p.checkTimesAfter(t, name, time.Duration(away)*time.Second, compacted) })
	}
}

func (p *controlPlane) checkTimesAfter(t *testing.T, run string, away time.Duration, compacted bool) {
	st, f := newStore(), newFakeAPI(t)
	config := func(c *Config) {
		c.Client, _ = apiserver.NewClient(p.config, "test")
		c.Rules = []selection.Rule{{Select: []string{"secrets"}, Namespaces: selection.Namespaces{Include: []string{"default"}}},
			{Select: []string{"leases.coordination.k8s.io"}, Namespaces: selection.Namespaces{Include: []string{"kube-system"}}}}
	}
	var existing []string
	for i := range int(2 * away / time.Second) {
		existing = append(existing, fmt.Sprint(run, "-existing", i))
		p.createSecret(t, existing[i])
	}
	_, _, stop := startSource(t, f, st, config)
	for _, resource := range []string{"secrets", "leases"} {
		st.awaitTrue(t, "the list", func() bool { return slices.Contains(st.kinds(resource), event.SnapshotEnd) })
	}
	stop()
	before := len(st.transcript())
	done := p.writeForAWhile(t, run, away, existing)
	if compacted {
		p.compactHistory(t)
		p.restartServer(t, p.StopAPIServer)
		done.coalesce()
	}
	_, _, stop = startSource(t, f, st, config)
	var made []*event.Change
	st.awaitTrue(t, "every change", func() bool {
		made = nil
		for i := before; i < len(st.transcript()); i++ {
			if c := st.changeAt(i); c.Resource.Resource == "secrets" && !c.Type.IsControl() {
				made = append(made, c)
			}
		}
		return len(made) >= len(done)
	})
	stop()
	checkTimes(t, made, done)
}

func checkTimes(t *testing.T, made []*event.Change, done writes) {
	var widths []time.Duration
	for _, c := range made {
		at, request := c.ChangedAt, done[string(c.Type)+" "+c.Name]
		if at.NotBefore.After(request[0]) || at.At.Before(request[1]) {
			t.Errorf("%s %s was made between %v and %v, not in %+v", c.Type, c.Name, request[0], request[1], at)
		}
		widths = append(widths, at.At.Sub(at.NotBefore))
	}
	slices.Sort(widths)
	if len(widths) != len(done) || widths[len(widths)/2] > 10*time.Second {
		t.Errorf("%d of %d changes, widths %v", len(widths), len(done), widths)
	}
	t.Logf("%d changes, median width %v, widest %v", len(widths), widths[len(widths)/2], widths[len(widths)-1])
}

// coalesce leaves what a list shows of the writes: nothing of objects that came and went, and one change of each other one,
// from its first write to its last.
func (w writes) coalesce() {
	for what := range w {
		name, created := strings.CutPrefix(what, "added ")
		_, deleted := w["deleted "+name]
		switch {
		case !created:
		case deleted:
			delete(w, what)
			delete(w, "deleted "+name)
			delete(w, "updated "+name)
		default:
			w[what] = [2]time.Time{w[what][0], w["updated "+name][1]}
			delete(w, "updated "+name)
		}
	}
}
