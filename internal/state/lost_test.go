package state

import (
	"errors"
	"strings"
	"testing"
)

// TestALostStateIsAGap lets the last owner of a state die, and the state be lost: a standby that has seen the state, or a
// process on a journal that has, starts with a gap of each resource in every sink. One that has never seen a state starts
// with a snapshot alone, and the owner on its own journal continues.
func TestALostStateIsAGap(t *testing.T) {
	vanish := map[string]func(*testing.T, *world){
		"purged": func(_ *testing.T, w *world) { w.bus.purgeState() },
		"reset": func(t *testing.T, w *world) {
			operator := w.startProcess(nil)
			if _, err := operator.writer.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	}
	follow := func(t *testing.T, p *process) {
		t.Helper()
		if err := p.writer.readStandby(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for how, lose := range vanish {
		for name, c := range map[string]struct {
			successor func(t *testing.T, w *world, owner *process, lose func()) *process
			gap       bool
		}{
			"a standby that watched it vanish": {gap: true, successor: func(t *testing.T, w *world, _ *process, lose func()) *process {
				p := w.startProcess(nil)
				follow(t, p)
				lose()
				follow(t, p)
				return p
			}},
			"a standby that had no look since": {gap: true, successor: func(t *testing.T, w *world, _ *process, lose func()) *process {
				p := w.startProcess(nil)
				follow(t, p)
				lose()
				return p
			}},
			"a standby that restarts": {gap: true, successor: func(t *testing.T, w *world, _ *process, lose func()) *process {
				p := w.startProcess(nil)
				follow(t, p)
				lose()
				p.shutDown()
				return w.startProcess(p.fs)
			}},
			"a former owner whose journal is older": {gap: true, successor: func(t *testing.T, w *world, _ *process, lose func()) *process {
				former := w.startProcess(w.predecessors[0].fs)
				follow(t, former)
				lose()
				follow(t, former)
				return former
			}},
			"the owner on its journal": {successor: func(_ *testing.T, w *world, owner *process, lose func()) *process {
				lose()
				owner.shutDown()
				return w.startProcess(owner.fs)
			}},
			"one that has never seen a state": {successor: func(_ *testing.T, w *world, _ *process, lose func()) *process {
				lose()
				return w.startProcess(nil)
			}},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				w := newWorld(t, 5, false)
				former := startActive(t, w, w.startProcess(nil))
				w.changeCluster(20, former)
				former.shutDown()
				w.predecessors = append(w.predecessors, former)
				owner := startActive(t, w, w.startProcess(nil))
				w.changeCluster(20, owner)
				p := c.successor(t, w, owner, func() { lose(t, w) })
				w.changeCluster(20, nil)
				for write := 1; ; write++ { // it dies at each write of its take-over first
					w.failAfter(write)
					err := p.takeOver()
					if err == nil {
						break
					}
					if !errors.Is(err, errKilled) {
						t.Fatal(err)
					}
					p.shutDown()
					p = w.startProcess(p.fs)
				}
				w.bus.failWrite = nil
				startActive(t, w, p)
				w.changeCluster(10, p)
				for _, sink := range p.members {
					var resources []string
					for _, id := range w.gapsIn(sink) {
						name, _, _ := strings.Cut(strings.TrimPrefix(id, "c/"), "@/")
						resources = append(resources, name)
					}
					if want := c.gap; (len(resources) == 2) != want || !want && len(resources) > 0 {
						t.Errorf("%s: gaps %q of %q", sink, w.gapsIn(sink), resources)
					}
				}
			})
		}
	}
}

// TestAFirstStartMakesNoGap starts a pair for the first time: one is active, the other one follows.
func TestAFirstStartMakesNoGap(t *testing.T) {
	w := newWorld(t, 6, false)
	standby := w.startProcess(nil)
	if err := standby.writer.readStandby(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(10, p)
	if err := standby.writer.readStandby(t.Context()); err != nil {
		t.Fatal(err)
	}
	startActive(t, w, standby)
	w.changeCluster(10, standby)
	for name := range w.topics {
		if gaps := w.gapsIn(name); len(gaps) > 0 {
			t.Errorf("%s: gaps %q", name, gaps)
		}
	}
}
