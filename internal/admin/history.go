package admin

import (
	"context"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source"
)

const (
	sampleEvery = 2 * time.Second
	samplesKept = 60 // two minutes
	samplesRate = 5  // a rate is that of the last ten seconds
)

// frame is what all viewers see at one moment. It does not change.
type frame struct {
	at time.Time
	Snapshot
	stages   map[string]Stage // by what is counted, see counterValues
	rendered sync.Map         // rendered HTML by pageKey, shared by all viewers
}

// meanRate is the mean of the newest points.
func meanRate(points []float64) float64 {
	newest, sum := points[max(0, len(points)-samplesRate):], 0.0
	for _, p := range newest {
		sum += p
	}
	return sum / float64(max(1, len(newest)))
}

// The names of counters.
const (
	countEvents    = "events"
	countChanges   = "changes"
	countJournaled = "journal"
	countResource  = "resource/"
	countSink      = "sink/"
)

// counterValues are what a snapshot counts.
func (s Snapshot) counterValues() map[string]uint64 {
	all := map[string]uint64{countJournaled: s.Journal.Newest, countEvents: 0, countChanges: 0}
	for _, r := range s.Resources {
		made := changesEmitted(r)
		all[countResource+r.Scope] = made
		all[countChanges] += made
		all[countEvents] += r.Events
	}
	for _, k := range s.Sinks {
		all[countSink+k.Name] = k.Delivered
	}
	return all
}

// changesEmitted counts the changes of a resource. That something exists is none.
func changesEmitted(r source.Status) (n uint64) {
	for kind, of := range r.Changes {
		if kind != event.Snapshot {
			n += of
		}
	}
	return n
}

// nextFrame is the frame of a snapshot that was taken after f, which may be nil.
func (f *frame) nextFrame(s Snapshot, now time.Time) *frame {
	next := &frame{at: now, Snapshot: s, stages: map[string]Stage{}}
	for name, count := range s.counterValues() {
		grown := Stage{count: count}
		if f != nil {
			if old, known := f.stages[name]; known && now.After(f.at) {
				first := max(0, len(old.Points)+1-samplesKept)
				grown.Points = append(grown.Points, old.Points[min(first, len(old.Points)):]...)
				grown.Points = append(grown.Points, float64(count-min(count, old.count))/now.Sub(f.at).Seconds())
				grown.Rate = meanRate(grown.Points)
			}
		}
		next.stages[name] = grown
	}
	return next
}

// currentFrame returns the newest frame. It takes a new one if that is too old, because the sampler does not run.
func (s *Server) currentFrame() *frame {
	if f := s.latest.Load(); f != nil && time.Since(f.at) < 2*sampleEvery {
		return f
	}
	return s.sampleFrame()
}

// sampleFrame takes a new frame.
func (s *Server) sampleFrame() *frame {
	next := s.latest.Load().nextFrame(s.options.Snapshot(), time.Now())
	s.latest.Store(next)
	return next
}

// sampleRegularly takes a frame regularly until ctx ends.
func (s *Server) sampleRegularly(ctx context.Context) {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		s.sampleFrame()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
