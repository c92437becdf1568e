package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/test/bench/broker"
	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// options are the flags of a comparison.
type options struct {
	corpus     corpus.Options
	only       string
	exporter   string
	dir        string
	keep       bool
	noBars     bool
	jsonFile   string
	drop       bool
	self       string
	start      int
	partitions int
	rounds     int
	markdown   string
	seconds    int
	rate       int // changes a second; 0: as fast as they go
}

func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	corpusFlags(f, &o.corpus)
	f.StringVar(&o.only, "only", "", "measure one system only, floor, exporter or baseline, or only the costs, the start, the shaping or the state")
	f.StringVar(&o.exporter, "exporter", "", "program to measure; built from this checkout where not given")
	f.StringVar(&o.dir, "dir", "", "directory to work in, on the kind of disk the journal is meant for; default the system's temporary directory")
	f.BoolVar(&o.keep, "keep", false, "keep the work directory: logs, configuration, journal")
	f.BoolVar(&o.noBars, "no-bars", false, "report only: missing a bar is no failure")
	f.StringVar(&o.jsonFile, "json", "", "also write the report to this file")
	f.IntVar(&o.rounds, "rounds", 3, "how often each system is measured under each load; medians count")
	f.IntVar(&o.seconds, "seconds", 15, "how long a load at a rate lasts")
	f.StringVar(&o.markdown, "markdown", "", "also write what changes cost to this file, as docs/performance.md has it")
	f.IntVar(&o.rate, "rate", 0, "changes a second for -only floor, exporter or baseline; 0 is as fast as they go")
	f.IntVar(&o.start, "start-objects", 100_000, "objects of 8 KB on which the exporter is started and started again; 0 leaves that out")
	f.IntVar(&o.partitions, "partitions", broker.Partitions, "of each topic")
	f.BoolVar(&o.drop, "baseline-drop-managed-fields", false, "let the baseline drop managedFields by a transform")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if !slices.Contains([]string{"", "costs", "floor", "exporter", "baseline", "start", "shaping", "state"}, o.only) {
		return o, fmt.Errorf("-only %s: expected costs, floor, exporter, baseline, start, shaping or state", o.only)
	}
	return o, nil
}

// runComparison measures the systems and reports.
func runComparison(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if o.self, err = os.Executable(); err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp(o.dir, "kubecdc-bench-"); err != nil {
		return err
	}
	defer func() {
		if o.keep {
			fmt.Fprintln(os.Stderr, "kept:", o.dir)
		} else {
			err = errors.Join(err, os.RemoveAll(o.dir))
		}
	}()
	report, err := compareSystems(ctx, o)
	if err != nil {
		return err
	}
	report.print(os.Stdout)
	if o.markdown != "" && len(report.Costs) > 0 {
		if err := os.WriteFile(o.markdown, []byte(report.page()), 0o644); err != nil {
			return err
		}
	}
	if o.jsonFile != "" {
		text, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.jsonFile, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return o.judge(report)
}

// judge turns missed bars into an error, unless they are only to be reported.
func (o options) judge(r *report) error {
	if o.noBars || len(r.Missed) == 0 {
		return nil
	}
	return errors.New("missed: " + strings.Join(r.Missed, "; "))
}

// compareSystems runs one system after the other.
func compareSystems(ctx context.Context, o options) (*report, error) {
	c, err := corpus.New(o.corpus)
	if err != nil {
		return nil, err
	}
	fsync, err := measureFsync(o.dir)
	if err != nil {
		return nil, err
	}
	r := &report{
		Objects: o.corpus.Objects, Changes: o.corpus.Changes, Seconds: o.seconds, Seed: o.corpus.Seed, ObjectBytes: averageSize(c),
		CPUs: runtime.NumCPU(), Go: runtime.Version(), FsyncMicros: fsync,
	}
	if o.only != "floor" && o.only != "baseline" && o.exporter == "" {
		fmt.Fprintln(os.Stderr, "building the exporter")
		if o.exporter, err = buildExporter(ctx, o.dir, ""); err != nil {
			return nil, err
		}
	}
	if o.only == "" || o.only == "costs" {
		if r.Costs, err = measureCosts(ctx, o); err != nil {
			return nil, err
		}
	}
	alone := map[string]system{
		"floor": floorSystem(o.self), "exporter": exporterSystem(o.exporter), "baseline": baselineSystem(o.self, o.drop),
	}
	if s, ok := alone[o.only]; ok {
		fmt.Fprintf(os.Stderr, "measuring %s: %s\n", s.name, s.title)
		m, err := measure(ctx, o, c, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		r.Measurements = append(r.Measurements, m)
	}
	if o.only == "" || o.only == "shaping" {
		if r.Shaping, err = measureShaping(ctx, o, c); err != nil {
			return nil, fmt.Errorf("shaping: %w", err)
		}
	}
	if o.only == "" || o.only == "state" {
		if r.Replicated, err = measureReplicated(ctx, o, c); err != nil {
			return nil, fmt.Errorf("replicated state: %w", err)
		}
	}
	if o.start > 0 && (o.only == "" || o.only == "start") {
		fmt.Fprintf(os.Stderr, "measuring a start on %d objects\n", o.start)
		m, err := measureStart(ctx, o, o.start)
		if err != nil {
			return nil, fmt.Errorf("start: %w", err)
		}
		r.Start = &m
	}
	r.judge()
	return r, nil
}

// averageSize returns the mean size of an object in bytes.
func averageSize(c *corpus.Corpus) int {
	sum := 0
	var text []byte
	for _, e := range c.Initial() {
		text = c.AppendObject(text[:0], e)
		sum += len(text)
	}
	return sum / len(c.Initial())
}
