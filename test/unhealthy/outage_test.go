package unhealthy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

const outageObjects = 1024 // that change in turn

// absentSink takes everything in a few lanes, unless it is away, and checks the order.
type absentSink struct {
	away  atomic.Bool
	taken atomic.Int64

	mu   sync.Mutex
	last map[string]uint64 // by object
}

func (s *absentSink) Lane(c *event.Change) (sinks.Lane, error) {
	return sinks.Lane(c.Name[len(c.Name)-1:]), nil
}

func (s *absentSink) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	if s.away.Load() {
		return 0, &sinks.UnavailableError{Reason: "it is away"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range batch {
		if m.Offset <= s.last[m.Change.Name] {
			return i, &sinks.RejectedError{Reason: fmt.Sprintf("%s: %d after %d", m.Change.Name, m.Offset, s.last[m.Change.Name])}
		}
		s.last[m.Change.Name] = m.Offset
	}
	s.taken.Add(int64(len(batch)))
	return len(batch), nil
}

func (s *absentSink) Close(context.Context) error { return nil }

// oneSinksJournal is the journal of one of several pipelines.
type oneSinksJournal struct {
	*journal.Journal
	sink string
}

func (o oneSinksJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	if len(dead) > 0 {
		return fmt.Errorf("sink %s: %s", o.sink, dead[0].Reason)
	}
	return o.Journal.Settle(ctx, o.sink, c, nil)
}

// TestADestinationThatIsAwayCostsNoMemoryAndNoChange lets changes pile up for one of two sinks, which
// is away: memory stays as it was, the other sink gets everything meanwhile, and in the end both have.
func TestADestinationThatIsAwayCostsNoMemoryAndNoChange(t *testing.T) {
	const third = 20_000 // changes, 40 MB of them
	quiet := slog.New(slog.DiscardHandler)
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"away", "well"}}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	run := func(part func(context.Context) error) {
		parts.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	defer func() {
		stop()
		parts.Wait()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	run(j.Run)
	all := map[string]*absentSink{}
	for _, name := range []string{"away", "well"} {
		all[name] = &absentSink{last: map[string]uint64{}}
		all[name].away.Store(name == "away")
		run(delivery.New(name, all[name], name, oneSinksJournal{j, name}, event.Cursor{}, delivery.Config{
			Retry: delivery.RetryConfig{Min: time.Millisecond, Max: 100 * time.Millisecond},
		}, quiet).Run)
	}
	has := func(name string, want int64) {
		t.Helper()
		await.Condition(t, "the sink "+name, waitTimeout, 5*time.Millisecond, func() string {
			if n := all[name].taken.Load(); n < want {
				return fmt.Sprintf("%d of %d changes", want-n, want)
			}
			return ""
		})
	}
	var live []float64 // MiB after each third
	for n := range 3 {
		if err := appendOutage(t.Context(), j, n*third, third); err != nil {
			t.Fatal(err)
		}
		has("well", int64(n+1)*third)
		live = append(live, liveHeapMiB(t))
	}
	if taken := all["away"].taken.Load(); taken > 0 {
		t.Errorf("the sink that is away took %d changes", taken)
	}
	t.Logf("live heap after each third of the outage: %.1f MiB", live)
	if grown := slices.Max(live[1:]) - live[0]; grown > 16 {
		t.Errorf("memory grew by %.1f MiB while changes piled up", grown)
	}
	all["away"].away.Store(false)
	has("away", 3*third)
}

// appendOutage appends changes, from number first on.
func appendOutage(ctx context.Context, j *journal.Journal, first, count int) error {
	body := []byte(`{"kind":"Pod","data":"` + strings.Repeat("kubecdc", 280) + `"}`)
	for n := first; n < first+count; n++ {
		c := &event.Change{Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "away", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "shop", Name: fmt.Sprint("web-", n%outageObjects), UID: fmt.Sprint(n % outageObjects), ResourceVersion: fmt.Sprint(n + 1), ObservedAt: time.Now(), After: body}
		known := event.Known{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
		err := j.Append(ctx, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Known: []event.Known{known}, Position: c.ResourceVersion})
		if err != nil {
			return errors.Join(fmt.Errorf("change %d", n), err)
		}
	}
	return nil
}
