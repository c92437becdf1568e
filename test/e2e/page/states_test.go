package page

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/test/parts/build"
)

var pictures = flag.String("pictures", "", "directory for screenshots of the pages in each state; it must exist")

// states are what a page shows. Each has the resource configmaps and the sink main.
var states = map[string]func(*exporter) admin.Snapshot{
	"healthy": func(e *exporter) admin.Snapshot { return e.plain(nil) },
	"sink":    func(e *exporter) admin.Snapshot { return e.plain([]condition.Status{sinkAway()}) },
	"several": func(e *exporter) admin.Snapshot {
		held := condition.NewStatus("sink/archive", condition.Problem{
			Code: condition.DeadLettersHeld, Cause: "dead letters wait for sink main: no broker of kafka-0.kafka.svc:9092 answers", From: "sink/main",
		})
		s := e.plain([]condition.Status{sinkAway(), held})
		s.Conditions = append(s.Conditions,
			condition.NewStatus("configuration", condition.Problem{Code: condition.ConfigRefused, Cause: `resources[3].filter: ERROR: <input>:1:1: undeclared reference to 'objekt' (in container '')`}),
			condition.NewStatus("clock", condition.Problem{Code: condition.ClockSkew, Cause: "this machine's clock is 1h0m12s ahead of the API server's"}),
			condition.NewStatus("audit/"+longPath, condition.Problem{Code: condition.AuditUnreadable, Cause: "open " + longPath + ": permission denied"}),
			s.Journal.Blocked)
		s.Audit = &admin.AuditStatus{}
		return s
	},
	"full": func(e *exporter) admin.Snapshot {
		full := condition.NewStatus("journal", condition.Problem{
			Code: condition.JournalFull, Cause: `the journal has reached journal.maxBytes with changes that sink "main" has not settled`,
		})
		full.Since, full.Deadline = time.Now().Add(-time.Minute), time.Now().Add(4*time.Minute)
		s := e.plain([]condition.Status{sinkAway(), full})
		s.Journal.RetainedBytes = s.Journal.MaxBytes
		return s
	},
	"crowded": func(e *exporter) admin.Snapshot { // twenty sinks, all of them away
		s := e.plain([]condition.Status{sinkAway()})
		for i := range 18 {
			away := sinkAway()
			away.Component = fmt.Sprint("sink/team-", i)
			s.AddSink(admin.SinkStatus{Name: fmt.Sprint("team-", i), Kind: "nats", Stats: delivery.Stats{Lanes: 62, LanesFailing: 62}}, []condition.Status{away})
		}
		for i := range 58 {
			s.Resources = append(s.Resources, source.Status{Scope: fmt.Sprintf("widgets%02d.demo.kubecdc.io", i), State: source.Live})
		}
		return s
	},
	"standby": func(e *exporter) admin.Snapshot {
		return admin.Snapshot{
			Cluster: admin.ClusterStatus{Name: "prod-eu-1"}, Journal: journal.Stat{MaxBytes: 10 << 30},
			Replica: &admin.ReplicaStatus{Identity: "kubecdc-1", Role: admin.RoleStandby, Since: time.Now().Add(-time.Hour), Holder: "kubecdc-0", Known: 41_000},
		}
	},
}

const longPath = "/var/log/kubernetes/kube-apiserver/a-directory-with-a-rather-long-name/audit.log"

// sinkAway is the condition of a sink that cannot be reached.
func sinkAway() condition.Status {
	s := condition.NewStatus("sink/main", condition.Problem{
		Code: condition.SinkUnreachable, Cause: "no broker of kafka-0.kafka.svc:9092, kafka-1.kafka.svc:9092, kafka-2.kafka.svc:9092 answers",
		Effect: "no lane delivers, 62 of 62 wait; changes wait in the journal, and other sinks continue",
		Remedy: "check kafka.brokers, the network, and TLS on both sides",
	})
	s.Since = time.Now().Add(-17 * time.Minute)
	return s
}

// plain is an exporter of three resources and two sinks, with these conditions.
func (e *exporter) plain(conditions []condition.Status) admin.Snapshot {
	n, now := e.looks.Add(1), time.Now()
	s := admin.Snapshot{
		Cluster: admin.ClusterStatus{Name: "prod-eu-1", UID: "49fda238-028f-4c54-84c5-ba4c1ce9a1ea"},
		Journal: journal.Stat{Oldest: 1, RetainedBytes: 3 << 30, MaxBytes: 10 << 30},
		Config:  admin.ConfigStatus{Hash: "2c26b46b68ff"},
	}
	changes := uint64(0)
	for i, name := range []string{"configmaps", "deployments.apps", "certificates.cert-manager.io"} {
		made := grown(n, 4-i)
		changes += made
		r := source.Status{
			Scope: name, State: source.Live, Known: 1300 * (i + 1), LastEvent: now, Position: "4711", Events: made, Lists: 2,
			Changes: map[event.Type]uint64{event.Updated: made, event.Added: n}, Condition: condition.Status{Since: now.Add(-time.Hour)},
		}
		s.Resources = append(s.Resources, r)
	}
	s.Journal.Newest = changes
	of := map[string][]condition.Status{}
	for _, c := range conditions {
		if c.Component == "journal" {
			s.Conditions = append(s.Conditions, c)
		} else {
			of[c.Component] = append(of[c.Component], c)
		}
	}
	for _, name := range []string{"main", "archive"} {
		stats := delivery.Stats{Delivered: changes, Low: changes, Lanes: 62, LastAck: now, WindowLimit: 16 << 20}
		if len(of["sink/"+name]) > 0 {
			stats = delivery.Stats{Low: 0, Delivered: 4711, Lanes: 62, LanesFailing: 62, LastAck: now.Add(-17 * time.Minute), WindowLimit: 16 << 20,
				Lag: 17 * time.Minute, Retries: 204}
		}
		s.AddSink(admin.SinkStatus{Name: name, Kind: "kafka", Stats: stats}, of["sink/"+name])
	}
	return s
}

// TestPageOfEachStateFitsEveryScreen shows what is usual, and what an operator looks at in an outage. Sizes do not depend on
// colors, and the user's own colors not on the state: [TestPageFitsEveryScreenAndIsAccessible] has all of them.
func TestPageOfEachStateFitsEveryScreen(t *testing.T) {
	ctx := browser(t)
	script, err := build.Axe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	axe, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	for name, state := range states {
		e, address := startIn(t, state)
		for n := range 40 {
			e.change(n)
		}
		for page, path := range map[string]string{"overview": "/", "resource": "/resource?name=configmaps", "sink": "/sink?name=main"} {
			if name == "standby" && page != "overview" {
				continue
			}
			for device, size := range map[string][2]int64{"phone": {360, 740}, "desktop": {1280, 900}} {
				scheme := map[string]string{"phone": "dark", "desktop": "light"}[device]
				t.Run(fmt.Sprintf("%s %s %s %s", name, page, device, scheme), func(t *testing.T) {
					do(ctx, t, look(size[0], size[1], scheme), chromedp.Navigate(address+path), until(`document.querySelector("#link") !== null`))
					if page == "overview" && name != "standby" {
						do(ctx, t, until(`document.querySelectorAll("#changes li").length >= 20 && document.querySelector(".spark") !== null`))
					}
					if wide := ask(ctx, t, chromedp.Evaluate[int](`document.documentElement.scrollWidth`)); wide > int(size[0]) {
						t.Errorf("%d pixels wide on a screen of %d", wide, size[0])
					}
					for _, v := range violations(ctx, t, string(axe)) {
						t.Error(v)
					}
					if page == "resource" && ask(ctx, t, chromedp.Evaluate[int](`document.getElementById("changes").clientHeight`)) > 100 {
						t.Error("a list without changes is a large empty box")
					}
					if at := ask(ctx, t, chromedp.Evaluate[int](`document.getElementById("changes-title")?.offsetTop ?? 0`)); page == "overview" && device == "desktop" && at > 2500 {
						t.Errorf("the newest changes are %d pixels below", at)
					}
					if name == "full" && page == "overview" && !ask(ctx, t, chromedp.Evaluate[bool](`document.querySelector("meter").value > document.querySelector("meter").high`)) {
						t.Error("the meter of a full journal has the color of an empty one")
					}
					if *pictures != "" {
						// The whole page, not only what fits the screen.
						height := ask(ctx, t, chromedp.Evaluate[int64](`document.documentElement.scrollHeight`))
						do(ctx, t, look(size[0], height, scheme))
						png := ask(ctx, t, chromedp.CaptureScreenshot())
						file := filepath.Join(*pictures, fmt.Sprintf("%s-%s-%s-%s.png", name, page, device, scheme))
						if err := os.WriteFile(file, png, 0o600); err != nil {
							t.Fatal(err)
						}
					}
				})
			}
		}
	}
}
