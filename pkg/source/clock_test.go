package source

import (
	"fmt"
	"slices"
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

// writeForAWhile creates, changes and deletes secrets for that time, and renews a Lease all the while.
func (p *controlPlane) writeForAWhile(t *testing.T, total time.Duration) writes {
	t.Helper()
	const lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	body := func(version string) string {
		return fmt.Sprintf(`{"metadata":{"name":"node","resourceVersion":%q},"spec":{"renewTime":%q}}`, version,
			time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	renewed := p.request(t, "POST", lease, body(""))
	done, pace := writes{}, time.NewTicker(250*time.Millisecond)
	defer pace.Stop()
	for end, n := time.Now().Add(total), 0; time.Now().Before(end); n++ {
		name := fmt.Sprint("w", n)
		done.do("added "+name, func() { p.createSecret(t, name) })
		done.do("updated "+name, func() { p.updateSecret(t, name, "1") })
		if n%2 == 0 {
			done.do("deleted "+name, func() { p.deleteSecret(t, name) })
		}
		if n%4 == 0 {
			renewed = p.request(t, "PUT", lease+"/node", body(renewed))
		}
		<-pace.C
	}
	return done
}

// TestAChangeThatIsReadLateHasTheTimeItWasMade: each interval holds the request that made the change, and is narrow.
func TestAChangeThatIsReadLateHasTheTimeItWasMade(t *testing.T) {
	p, st, f := startControlPlane(t), newStore(), newFakeAPI(t)
	config := func(c *Config) {
		c.Client, _ = apiserver.NewClient(p.config, "test")
		c.Rules = []selection.Rule{{Select: []string{"secrets"}, Namespaces: selection.Namespaces{Include: []string{"default"}}},
			{Select: []string{"leases.coordination.k8s.io"}, Namespaces: selection.Namespaces{Include: []string{"kube-system"}}}}
	}
	p.createSecret(t, "first")
	_, _, stop := startSource(t, f, st, config)
	for _, resource := range []string{"secrets", "leases"} {
		st.awaitTrue(t, "the list", func() bool { return slices.Contains(st.kinds(resource), event.SnapshotEnd) })
	}
	before := len(st.kinds("secrets"))
	stop()
	done := p.writeForAWhile(t, 20*time.Second)
	_, _, stop = startSource(t, f, st, config)
	st.awaitTrue(t, "every change", func() bool { return len(st.kinds("secrets")) == before+len(done) })
	stop()

	var widths []time.Duration
	for i := range st.transcript() {
		c := st.changeAt(i)
		request, made := done[string(c.Type)+" "+c.Name]
		if !made || c.Resource.Resource != "secrets" {
			continue
		}
		at := c.ChangedAt
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
