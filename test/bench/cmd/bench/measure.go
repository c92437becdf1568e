package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/test/bench/broker"
	"github.com/kubecdc/kubecdc/test/bench/corpus"
	"github.com/kubecdc/kubecdc/test/bench/replay"
	"github.com/kubecdc/kubecdc/test/bench/verify"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

const (
	pollEvery = 20 * time.Millisecond
	settled   = time.Second      // nothing new for so long: a phase is over, and its after-effects are counted
	patience  = 60 * time.Second // nothing new for so long while something is missing: it will not come
)

// phase is what one part of a run took.
type phase struct {
	Seconds float64 `json:"seconds"` // until the last record was at the broker
	CPU     float64 `json:"cpuSeconds"`
	PeakRSS int64   `json:"peakRSSBytes"` // since the start of the process
}

// measurement is what one system did.
type measurement struct {
	System    string                     `json:"system"`
	Title     string                     `json:"title"`
	Sync      phase                      `json:"sync"`    // from the start until all objects were exported
	Changes   phase                      `json:"changes"` // the changes
	Total     phase                      `json:"total"`   // the whole life of the process, stopping included
	PerSecond float64                    `json:"changesPerSecond"`
	CPUMicros float64                    `json:"cpuMicrosPerChange"`
	P50       float64                    `json:"p50Millis"` // from when a change is due until a consumer has it; at a rate only
	P99       float64                    `json:"p99Millis"`
	Requests  map[string]replay.Requests `json:"requests"`
	Delivered verify.Result              `json:"delivered"`
}

// trial is one system on its stage, with everything around it.
type trial struct {
	corpus   *corpus.Corpus
	system   system
	rate     int // changes a second; 0: as fast as they go
	process  *process.Process
	control  *replay.Control
	reader   *broker.Reader
	arrivals *broker.Arrivals                     // nil unless at a rate
	count    func(context.Context) (int64, error) // of the records that have arrived
}

// measure runs one system from an empty broker to the comparison of what arrived.
func measure(ctx context.Context, o options, c *corpus.Corpus, s system) (m measurement, err error) {
	return measureCounting(ctx, o, c, s, nil)
}

// measureCounting is measure for a system that writes elsewhere: count returns the number of records, without comparing
// them.
func measureCounting(
	ctx context.Context, o options, c *corpus.Corpus, s system, count func(context.Context) (int64, error),
) (m measurement, err error) {
	at := stage{dir: filepath.Join(o.dir, s.name), kubeconfig: filepath.Join(o.dir, s.name, "kubeconfig")}
	if err := os.MkdirAll(at.dir, 0o755); err != nil {
		return m, err
	}
	t := &trial{corpus: c, system: s, rate: o.rate}
	surroundings, err := t.surround(ctx, o, &at)
	defer func() { err = errors.Join(err, surroundings()) }()
	if err != nil {
		return m, err
	}
	if t.rate > 0 {
		if t.arrivals, err = broker.Follow(at.broker, topicNames()); err != nil {
			return m, err
		}
	}
	if t.count = t.reader.Count; count != nil {
		t.count = count
	}
	began := time.Now()
	if t.process, err = s.start(ctx, at); err != nil {
		return m, err
	}
	m = measurement{System: s.name, Title: s.title}
	err = t.observe(ctx, &m)
	err = errors.Join(err, t.process.Stop())
	if err != nil {
		return m, err
	}
	usage := t.process.Usage()
	m.Total = phase{time.Since(began).Seconds(), usage.CPU.Seconds(), usage.PeakRSS}
	if count == nil && s.decode != nil {
		m.Delivered, err = t.compare(ctx, s)
	}
	return m, err
}

// surround starts the replay server and the broker. The function it returns stops what was started, also after an error.
func (t *trial) surround(ctx context.Context, o options, at *stage) (stop func() error, err error) {
	var stops []func() error
	stop = func() error {
		var errs []error
		for i := len(stops) - 1; i >= 0; i-- {
			errs = append(errs, stops[i]())
		}
		return errors.Join(errs...)
	}
	addressFile := filepath.Join(at.dir, "broker.address")
	b, err := process.Start(ctx, process.Options{
		Name: "broker", Path: o.self, Args: []string{"broker", "-address-file", addressFile, "-partitions", strconv.Itoa(o.partitions)},
		Log: filepath.Join(at.dir, "broker.log"),
		Ready: func(context.Context) error {
			text, err := os.ReadFile(addressFile)
			at.broker = string(text)
			return err
		},
	})
	if err != nil {
		return stop, err
	}
	stops = append(stops, b.Stop)
	server, err := process.Start(ctx, process.Options{
		Name: "replay server", Path: o.self, Args: append([]string{"replay", "-kubeconfig", at.kubeconfig}, corpusArgs(o.corpus)...),
		Log: filepath.Join(at.dir, "replay.log"),
		Ready: func(ctx context.Context) (err error) {
			if t.control, err = replay.Dial(at.kubeconfig); err == nil {
				_, err = t.control.Requests(ctx)
			}
			return err
		},
	})
	if err != nil {
		return stop, err
	}
	stops = append(stops, server.Stop)
	t.reader, err = broker.Open(at.broker, topicNames(), o.partitions)
	if err == nil {
		stops = append(stops, func() error { t.reader.Close(); return nil })
	}
	return stop, err
}

// observe takes the system through both phases.
func (t *trial) observe(ctx context.Context, m *measurement) error {
	began := time.Now()
	initial, all := int64(len(t.corpus.Initial())), int64(len(t.corpus.Entries()))
	last, err := t.await(ctx, initial)
	if err != nil {
		return fmt.Errorf("initial sync: %w", err)
	}
	if err := t.awaitLive(ctx); err != nil {
		return fmt.Errorf("initial sync: %w", err)
	}
	before := t.process.Usage()
	m.Sync = phase{last.Sub(began).Seconds(), before.CPU.Seconds(), before.PeakRSS}

	if t.system.profile != "" {
		if err := syscall.Kill(t.process.Pid(), syscall.SIGUSR1); err != nil {
			return err
		}
	}
	if began, err = t.control.Start(ctx, t.rate); err != nil {
		return err
	}
	if last, err = t.await(ctx, all); err != nil {
		return fmt.Errorf("changes: %w", err)
	}
	after := t.process.Usage()
	if t.system.profile != "" {
		if err := t.endProfile(ctx); err != nil {
			return err
		}
	}
	if t.arrivals != nil {
		if err := t.judgeLatency(began, m); err != nil {
			return err
		}
	}
	m.Changes = phase{last.Sub(began).Seconds(), (after.CPU - before.CPU).Seconds(), after.PeakRSS}
	changes := float64(all - initial)
	m.PerSecond = changes / m.Changes.Seconds
	m.CPUMicros = m.Changes.CPU * 1e6 / changes
	m.Requests, err = t.control.Requests(ctx)
	return err
}

// endProfile waits until the profile is written.
func (t *trial) endProfile(ctx context.Context) error {
	if err := syscall.Kill(t.process.Pid(), syscall.SIGUSR2); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if _, err := os.Stat(t.system.profile); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the profile was not written: %w", ctx.Err())
		}
	}
}

// judgeLatency notes how long changes took from the moment they were due at the API server until a consumer had them.
func (t *trial) judgeLatency(began time.Time, m *measurement) error {
	times, err := t.arrivals.Close()
	if err != nil {
		return err
	}
	var all []time.Duration
	for i, e := range t.corpus.Changes() {
		if at, ok := times[e.RV]; ok {
			all = append(all, at.Sub(began.Add(time.Duration(i+1)*time.Second/time.Duration(t.rate))))
		}
	}
	if len(all) < len(t.corpus.Changes()) {
		return fmt.Errorf("the consumer found %d of %d changes", len(all), len(t.corpus.Changes()))
	}
	slices.Sort(all)
	m.P50, m.P99 = milliseconds(all[len(all)/2]), milliseconds(all[len(all)*99/100])
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// await waits until the broker holds want records and no more come, or until nothing has come for long: what is missing
// then is found by the comparison. It returns when the last record came.
func (t *trial) await(ctx context.Context, want int64) (last time.Time, err error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	count, last := int64(-1), time.Now()
	for {
		n, err := t.count(ctx)
		if err != nil {
			return last, err
		}
		if n != count {
			count, last = n, time.Now()
		}
		if quiet := time.Since(last); quiet > patience || n >= want && quiet > settled {
			return last, nil
		}
		select {
		case <-tick.C:
		case <-t.process.Done():
			return last, fmt.Errorf("the system has ended with %d of %d records written: %w", n, want, t.process.Result())
		case <-ctx.Done():
			return last, ctx.Err()
		}
	}
}

// awaitLive waits until the system watches every resource.
func (t *trial) awaitLive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		requests, err := t.control.Requests(ctx)
		if err != nil {
			return err
		}
		live := true
		for _, counted := range requests {
			live = live && counted.Live > 0
		}
		if live {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not every resource is watched: %+v: %w", requests, ctx.Err())
		}
	}
}

// compare reads everything from the broker.
func (t *trial) compare(ctx context.Context, s system) (verify.Result, error) {
	ledger := verify.NewLedger(t.corpus)
	err := t.reader.Read(ctx, func(k *kgo.Record) error {
		record, err := s.decode(k.Value)
		if err != nil {
			ledger.Reject(err)
		} else {
			ledger.Add(k.Partition, record)
		}
		return nil
	})
	return ledger.Result(), err
}
