package delivery

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// rereadCounter counts reads of frames that the dispatcher had read before.
type rereadCounter struct {
	*endlessJournal
	newest  uint64
	rereads int
}

func (r *rereadCounter) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	frame, err := r.endlessJournal.Read(ctx, after)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if last := frame[len(frame)-1].Offset; last > r.newest {
			r.newest = last
		} else {
			r.rereads++
		}
	}
	return frame, err
}

func (r *rereadCounter) rereadCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rereads
}

// TestLaggingLanesShareOneReread has 90 of 400 lanes fail, one each second, and all recover together after five
// minutes: the frames they lack are read about once in all, not once per lane.
func TestLaggingLanesShareOneReread(t *testing.T) {
	for name, laneOf := range map[string]func(i int) int{
		"even":   func(i int) int { return i },
		"skewed": func(i int) int { return i * i / 400 }, // the first lanes have many changes, the last ones few
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lanes = 400
				r, to := &rereadCounter{endlessJournal: newEndlessJournal(lanes, lanes)}, newCountingSink(t)
				failsFrom := map[sinks.Lane]time.Time{}
				for i := range lanes {
					r.lanes[i] = fmt.Sprint("lane", laneOf(i))
					if i >= 10 && i < 100 {
						failsFrom[sinks.Lane(fmt.Sprint("lane", i))] = time.Now().Add(time.Duration(i) * time.Second)
					}
				}
				to.failure = func(l sinks.Lane) error {
					if from, ok := failsFrom[l]; ok && time.Now().After(from) {
						return errors.New("no such topic")
					}
					return nil
				}
				cfg := Config{WindowBytes: 1 << 20, Workers: 64, Retry: RetryConfig{Min: time.Second, Max: time.Second}}
				p := startPipeline(t, sinkFuncs{publish: to.publishCounted}, r, event.Cursor{}, cfg)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if got := p.Stats(); got.LanesLagging != 90 || r.rereadCount() != 0 {
					t.Errorf("%d lanes lag, %d frames were read again", got.LanesLagging, r.rereadCount())
				}
				to.setFailure(nil)
				r.lastOffset.Store(r.newestOffset())
				p.drainUpTo(t, r.lastOffset.Load())
				if frames := int(r.lastOffset.Load() / 10); r.rereadCount() > frames*5/4 {
					t.Errorf("%d frames were read again of %d", r.rereadCount(), frames)
				}
			})
		})
	}
}
