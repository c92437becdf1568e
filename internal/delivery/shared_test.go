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

// readings counts how often frames of a stream were read that the dispatcher had read before.
type readings struct {
	*stream
	newest uint64
	again  int
}

func (r *readings) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	frame, err := r.stream.Read(ctx, after)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if last := frame[len(frame)-1].Offset; last > r.newest {
			r.newest = last
		} else {
			r.again++
		}
	}
	return frame, err
}

func (r *readings) readAgain() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again
}

// TestLanesThatAreBehindShareOneReading has 90 of 400 lanes fail, one each second, and all be cured together after twenty
// minutes: what they lack is read about once, and not once for each.
func TestLanesThatAreBehindShareOneReading(t *testing.T) {
	for name, laneOf := range map[string]func(i int) int{
		"even":   func(i int) int { return i },
		"skewed": func(i int) int { return i * i / 400 }, // the first lanes have many changes, the last ones few
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lanes = 400
				r, to := &readings{stream: newStream(lanes, lanes)}, newCounts(t)
				failsFrom := map[sinks.Lane]time.Time{}
				for i := range lanes {
					r.lanes[i] = fmt.Sprint("lane", laneOf(i))
					if i >= 10 && i < 100 {
						failsFrom[sinks.Lane(fmt.Sprint("lane", i))] = time.Now().Add(time.Duration(i) * time.Second)
					}
				}
				to.sick = func(l sinks.Lane) error {
					if from, ok := failsFrom[l]; ok && time.Now().After(from) {
						return errors.New("no such topic")
					}
					return nil
				}
				cfg := Config{WindowBytes: 1 << 20, Workers: 64, Retry: RetryConfig{Min: time.Second, Max: time.Second}}
				p := run(t, sinkFuncs{publish: to.publish}, r, event.Cursor{}, cfg)
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				if got := p.Stats(); got.LanesBehind != 90 || r.readAgain() != 0 {
					t.Errorf("%d lanes are behind, of which %d frames were read again", got.LanesBehind, r.readAgain())
				}
				to.cure(nil)
				r.closed.Store(r.stream.newest())
				p.drained(t, r.closed.Load())
				if frames := int(r.closed.Load() / 10); r.readAgain() > frames*5/4 {
					t.Errorf("%d frames were read again of %d", r.readAgain(), frames)
				}
			})
		})
	}
}
