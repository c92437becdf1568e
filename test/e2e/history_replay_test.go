package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// standsStill is what a replay writes at its end.
const standsStill = "It stands still"

// replayHistory replays what happened between two revisions, and compares: lists with etcd at their revision, and at the
// end what informers hold, and what kubectl has seen if there is no gap, with the state of the last revision.
func (s *fixture) replayHistory(dir string, from, until int64, historyAt func(int64) *oracle.History, hasGap bool) {
	s.t.Helper()
	speed := "1"
	if hasGap {
		speed = "5"
	}
	v := s.serve(dir, "--from", fmt.Sprint("rv:", from), "--until", fmt.Sprint("rv:", until), "--speed", speed)
	client, err := dynamic.NewForConfigAndClient(v.config, v.client)
	s.must(err)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	stores := map[oracle.Resource]cache.Store{}
	for _, r := range s.resources {
		stores[r] = factory.ForResource(schema.GroupVersionResource{Group: r.Group, Version: "v1", Resource: r.Resource}).Informer().GetStore()
	}
	stop := make(chan struct{})
	factory.Start(stop)
	defer factory.Shutdown()
	defer close(stop)
	kubectl := s.watchByKubectl(v)

	lists, unknown, why := map[int64]bool{}, 0, ""
	await.Condition(s.t, "the end of the replay", 2*time.Minute, lookEvery, func() string {
		for _, r := range s.resources {
			got, version, reason := v.state(r)
			if reason != "" {
				unknown++
				why = reason
			} else if want := stateOf(historyAt(version), r, version); !maps.Equal(got, want) {
				s.t.Errorf("%s at %d is listed with %d objects, in etcd %d: %s", selection(r), version, len(got), len(want), mismatches(got, want))
			}
			lists[version] = true
		}
		if !strings.Contains(s.readFile(v.log), standsStill) {
			return "it plays"
		}
		return ""
	})
	if s.t.Logf("lists of %d versions equal etcd's, %d are unknown", len(lists), unknown); len(lists) < 10 || (unknown > 0) != hasGap {
		s.t.Errorf("that is not as it should be: %s\n%s", why, s.ask("history", "log", "--dir", dir))
	}
	for _, r := range s.resources {
		want, code := s.stateInHistory(dir, r, strconv.FormatInt(until, 10))
		if code != 0 {
			s.t.Fatalf("get %s: exit %d", selection(r), code)
		}
		await.Condition(s.t, "the informers", arriveWithin, lookEvery, func() string {
			if got := stateOfStore(r, stores[r]); !maps.Equal(got, want) {
				return fmt.Sprintf("%s: %s", selection(r), mismatches(got, want))
			}
			if r.Resource != "pods" || hasGap {
				return ""
			}
			names := map[string]bool{}
			for o := range want {
				names[o.Namespace+"/"+o.Name] = true
			}
			if got := kubectl(); !maps.Equal(got, names) {
				return fmt.Sprintf("kubectl has seen %v, want %v", got, names)
			}
			return ""
		})
	}
	s.must(v.Kill())
}

// mismatches names the objects that are not the same in two states, with their revisions; 0 where an object does not exist.
func mismatches(got, want map[bus.Object]int64) string {
	var all []string
	for o, revision := range want {
		if got[o] != revision {
			all = append(all, fmt.Sprintf("%s/%s: %d instead of %d", o.Namespace, o.Name, got[o], revision))
		}
	}
	for o, revision := range got {
		if want[o] == 0 {
			all = append(all, fmt.Sprintf("%s/%s: %d instead of 0", o.Namespace, o.Name, revision))
		}
	}
	return strings.Join(all, ", ")
}

// stateOfStore returns the revisions of what an informer holds.
func stateOfStore(r oracle.Resource, store cache.Store) map[bus.Object]int64 {
	state := map[bus.Object]int64{}
	for _, one := range store.List() {
		o := one.(metav1.Object)
		revision, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
		state[bus.Object{Group: r.Group, Resource: r.Resource, Namespace: o.GetNamespace(), Name: o.GetName()}] = revision
	}
	return state
}

// watchByKubectl has kubectl watch Pods, and returns what finds out which Pods exist by what it has written until then.
func (s *fixture) watchByKubectl(v *serving) (pods func() map[string]bool) {
	s.t.Helper()
	program, err := build.Kubectl(s.t.Context())
	s.must(err)
	log := filepath.Join(s.t.TempDir(), "kubectl.log")
	p, err := process.Start(s.t.Context(), process.Options{Name: "kubectl", Path: program, Log: log, Args: []string{"--kubeconfig", v.kubeconfig,
		"--cache-dir", filepath.Join(filepath.Dir(v.kubeconfig), "cache"), "get", "pods", "-A", "-w", "--output-watch-events", "--no-headers"}})
	s.must(err)
	s.t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			s.t.Error(err)
		}
	})
	return func() map[string]bool {
		state := map[string]bool{}
		for line := range strings.Lines(s.readFile(log)) {
			words := strings.Fields(line) // EVENT NAMESPACE NAME …
			if len(words) < 3 {
				continue
			}
			if name := words[1] + "/" + words[2]; words[0] == "DELETED" {
				delete(state, name)
			} else {
				state[name] = true
			}
		}
		return state
	}
}

func (s *fixture) readFile(path string) string {
	s.t.Helper()
	b, err := os.ReadFile(path)
	s.must(err)
	return string(b)
}
