package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/logs"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

const (
	standbyTimeout = 3 * time.Minute // bounds each wait, with a wide margin
	standbyState   = "STATE"
)

// sharedPlane is the control plane of all pairs.
var sharedPlane controlplane.Shared

// pair are two processes of one deployment, on real servers.
type pair struct {
	*testing.T
	plane         *controlplane.ControlPlane
	nats          *natsserver.Server
	first, second *candidate
}

// candidate is a running process, without the tasks that a test steers itself.
type candidate struct {
	*app
	identity string
	log      *logs.Buffer
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{T: t, plane: sharedPlane.ForTest(t)}
	var err error
	if p.nats, err = natsserver.Start(context.Background(), natsserver.Options{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.nats.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// start starts a process.
func (p *pair) start(identity string) *candidate {
	p.Helper()
	cfg, err := config.Load(writeTemp(p.T, "config.yaml", fmt.Sprintf(`
cluster: {kubeconfig: %q}
resources: [{select: [configmaps]}]
journal: {dir: %q}
admin: {listen: ""}
sinks: [{name: main, nats: {url: %q, stream: K8S, subject: "k8s.{resource}.{namespace}.{name}", create: {enabled: true}}}]
state: {sink: main, name: %s}
election: {lease: default/exporter, duration: 2s, identity: %s}
`, p.plane.Kubeconfig(), filepath.Join(p.TempDir(), "journal"), p.nats.URL(), standbyState, identity)))
	if err != nil {
		p.Fatal(err)
	}
	log := &logs.Buffer{}
	c := &candidate{newApp("test", mask{}, log.Logger(), &slog.LevelVar{}), identity, log}
	if err := c.openProcess(cfg); err != nil {
		p.Fatal(err)
	}
	c.membership.startElection(c.failure.reportError)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.terms.runTerms(ctx, func() {}) }()
	p.Cleanup(func() {
		stop()
		err := <-ended
		c.stopProcessTasks()
		if err := errors.Join(err, c.closeProcess()); err != nil {
			p.Error(err)
		}
	})
	return c
}

func (c *candidate) replica() *replica { return c.terms.current.Load().replica }

// await waits until met returns true.
func (p *pair) await(what string, met func() bool) {
	p.Helper()
	await.Condition(p, what, standbyTimeout, 10*time.Millisecond, func() string {
		if met() {
			return ""
		}
		return what
	})
}

// awaitOwner waits until a process is active and the other one, which follows the state, has read that.
func (p *pair) awaitOwner(active, standby *candidate) {
	p.Helper()
	p.await(active.identity+" is active", func() bool { return active.replica().isActive() })
	p.await(standby.identity+" follows it", func() bool {
		return standby.replica().writer.Stats().Owner.Identity == active.identity
	})
}

// passLease lets the second process have the Lease of the first one, as from one that reaches no bus.
func (p *pair) passLease() {
	p.Helper()
	p.first.membership.election.SetYielding("more")
	p.await("the Lease passes to the second process", func() bool {
		p.second.membership.election.AcceptYielded()
		return p.first.membership.election.Holder() == p.second.identity
	})
}

// TestAStandbyHasNoFailingTakeOver lets another process have the turn of one that attempts to be active: while its attempt
// waits for a frozen server, which ends it and is no failure, and after attempts that failed. A standby attempts nothing.
func TestAStandbyHasNoFailingTakeOver(t *testing.T) {
	for name, c := range map[string]struct {
		loseTurn func(*pair)
		failed   bool // an attempt before
	}{
		"the turn ends the attempt": {loseTurnInAttempt, false}, "attempts have failed before": {loseTurnAfterFailures, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			c.loseTurn(p)
			p.awaitOwner(p.second, p.first)
			if s := p.first.replica().condition.Status(); !s.OK() {
				t.Errorf("the standby reports %s: %s", s.Code, s.CauseText())
			}
			if log := p.first.log.String(); !c.failed && strings.Contains(log, string(condition.FailoverFailing)) {
				t.Errorf("the end of the turn is a failure:\n%s", log)
			}
		})
	}
}

// loseTurnInAttempt has the configuration of the active process edited while its server is frozen, so that it waits for the
// fence of its sink.
func loseTurnInAttempt(p *pair) {
	p.first = p.start("exporter-0")
	p.await("the first process is active", func() bool { return p.first.replica().isActive() })
	p.second = p.start("exporter-1")
	p.awaitOwner(p.first, p.second)
	if err := p.nats.Process().Freeze(); err != nil {
		p.Fatal(err)
	}
	edited := *p.first.activeConfig()
	edited.Delivery.DrainTimeout += time.Second
	if err := p.first.applyConfig(p.Context(), &edited, func() {}); err != nil {
		p.Fatal(err)
	}
	p.passLease()
	if err := p.nats.Process().Resume(); err != nil {
		p.Fatal(err)
	}
}

// loseTurnAfterFailures gives the state a stream that cannot keep it.
func loseTurnAfterFailures(p *pair) {
	connection, err := nats.Connect(p.nats.URL())
	if err != nil {
		p.Fatal(err)
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		p.Fatal(err)
	}
	unsuitable := jetstream.StreamConfig{Name: standbyState, Subjects: []string{"another"}}
	if _, err := js.CreateStream(p.Context(), unsuitable); err != nil {
		p.Fatal(err)
	}
	p.first = p.start("exporter-0")
	p.await("an attempt fails", func() bool {
		return p.first.replica().condition.Status().Code == condition.FailoverFailing
	})
	p.second = p.start("exporter-1")
	p.passLease()
	if err := js.DeleteStream(p.Context(), standbyState); err != nil {
		p.Fatal(err)
	}
}
