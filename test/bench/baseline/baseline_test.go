package baseline

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/bench/broker"
	"github.com/kubecdc/kubecdc/test/bench/corpus"
	"github.com/kubecdc/kubecdc/test/bench/replay"
	"github.com/kubecdc/kubecdc/test/bench/verify"
)

// inBackground runs a part until the test is over, and fails the test when it fails.
func inBackground(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// eventually polls a condition of another part.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A baseline that lost or reordered something would not be a fair one.
func TestTheBaselineDeliversEverythingInOrder(t *testing.T) {
	for _, drop := range []bool{false, true} {
		dir := t.TempDir()
		c, err := corpus.New(corpus.Options{Objects: 200, Changes: 1500, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		topics := []string{"k8s.core.events", "k8s.core.pods"}
		kubeconfig, address := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "address")
		inBackground(t, replay.New(replay.Options{Corpus: c, Kubeconfig: kubeconfig}).Run)
		inBackground(t, func(ctx context.Context) error { return broker.Run(ctx, address, topics, broker.Partitions) })
		var control *replay.Control
		eventually(t, func() bool {
			control, err = replay.Dial(kubeconfig)
			return err == nil
		})
		var host []byte
		eventually(t, func() bool { host, err = os.ReadFile(address); return err == nil })
		reader, err := broker.Open(string(host), topics, broker.Partitions)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		arrived := func(n int) {
			eventually(t, func() bool { count, err := reader.Count(t.Context()); return err == nil && count >= int64(n) })
		}

		stop := inBackground(t, func(ctx context.Context) error {
			return Run(ctx, Options{
				Kubeconfig: kubeconfig, Brokers: []string{string(host)}, DropManagedFields: drop,
				Topics: map[string]string{"pods": "k8s.core.pods", "events": "k8s.core.events"},
			})
		})
		arrived(len(c.Initial()))
		if _, err := control.Start(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		arrived(len(c.Entries()))
		stop()
		check(t, c, reader, drop)
	}
}

// check compares what the broker holds with the corpus.
func check(t *testing.T, c *corpus.Corpus, reader *broker.Reader, dropped bool) {
	t.Helper()
	ledger := verify.NewLedger(c)
	err := reader.Read(t.Context(), func(k *kgo.Record) error {
		record, err := verify.Baseline(k.Value)
		if err != nil {
			return err
		}
		ledger.Add(k.Partition, record)
		var r Record
		if err := json.Unmarshal(k.Value, &r); err != nil {
			return err
		}
		if managed := (&unstructured.Unstructured{Object: r.Object}).GetManagedFields(); (len(managed) == 0) != dropped {
			t.Errorf("%d entries of managedFields, dropped: %v", len(managed), dropped)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := ledger.Result(); r != (verify.Result{Records: len(c.Entries())}) {
		t.Errorf("dropped %v: %+v", dropped, r)
	}
}
