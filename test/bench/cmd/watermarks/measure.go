package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/test/bench/broker"
	"github.com/kubecdc/kubecdc/test/bench/pipeline"
)

// measurement compares two exporters that read the same changes at the same time.
type measurement struct {
	cluster       *cluster
	rate          int
	last          time.Duration
	with, without *pipeline.Exporter
}

// usage is what both exporters have used since a moment, in seconds of CPU.
type usage struct{ with, without float64 }

func (m *measurement) used() usage {
	return usage{m.with.Usage().CPU.Seconds(), m.without.Usage().CPU.Seconds()}
}

func (u usage) since(before usage) usage {
	return usage{u.with - before.with, u.without - before.without}
}

func (m *measurement) measure(ctx context.Context, address string) error {
	with, err := broker.Open(address, []string{"with"})
	if err != nil {
		return err
	}
	defer with.Close()
	without, err := broker.Open(address, []string{"without"})
	if err != nil {
		return err
	}
	defer without.Close()
	more := func() (int64, error) { // records that only the exporter with watermarks has written
		a, errWith := with.Count(ctx)
		b, errWithout := without.Count(ctx)
		return a - b, errors.Join(errWith, errWithout)
	}
	least := int64(len(m.cluster.objects) * broker.Partitions)
	if err := pipeline.Until(ctx, time.Second, func() (bool, error) { // both have read everything
		n, err := more()
		return n >= least, err
	}); err != nil {
		return err
	}
	before := m.used()
	select {
	case <-time.After(m.last):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	idle := m.used().since(before)
	first, err := more()
	if err != nil {
		return err
	}
	before = m.used()
	changes, err := m.cluster.change(ctx, m.rate, time.Now().Add(m.last))
	if err != nil {
		return err
	}
	busy := m.used().since(before)
	second, err := more()
	if err != nil {
		return err
	}
	return m.report(idle, busy, changes, first, second)
}

// report prints the measurement. An error means that the bar was missed, or that nothing was measured.
func (m *measurement) report(idle, busy usage, changes int, first, second int64) error {
	seconds := m.last.Seconds()
	fmt.Printf("%d types, watermarks every %v in %d partitions; CPU of the exporter with and without them\n", len(m.cluster.objects), every, broker.Partitions)
	fmt.Printf("idle:               %6.2f %% and %6.2f %% of a core   bar: %.0f %% of a core more\n", 100*idle.with/seconds, 100*idle.without/seconds, 100*bar)
	fmt.Printf("%5.0f changes/s:    %6.2f %% and %6.2f %% of a core   bar: %.0f %% more\n", float64(changes)/seconds, 100*busy.with/seconds, 100*busy.without/seconds, 100*bar)
	fmt.Printf("watermarks: %d before, %d under load\n", first, second-first)
	if second-first < int64(len(m.cluster.objects)*broker.Partitions) {
		return errors.New("there were no watermarks under load")
	}
	if idle.with-idle.without > bar*seconds || busy.with-busy.without > bar*busy.without {
		return fmt.Errorf("watermarks cost %.2f %% of a core while idle, and %.2f %% more under load",
			100*(idle.with-idle.without)/seconds, 100*(busy.with/busy.without-1))
	}
	return nil
}
