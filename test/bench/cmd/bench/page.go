package main

import (
	"fmt"
	"slices"
	"strings"
)

// table returns what changes cost, and where, in Markdown.
func (r *report) table() string { return r.costs() + "\n" + r.shares() }

// costs returns what changes cost.
func (r *report) costs() string {
	var b strings.Builder
	b.WriteString("| | floor | exporter | usual |\n|---|---|---|---|\n")
	row := func(title string, c *costs, cell func(*measurement) string) {
		fmt.Fprintf(&b, "| %s: %s |", c.Load, title)
		for _, m := range []*measurement{&c.Floor, &c.Exporter, c.Baseline} {
			text := "–"
			if m != nil {
				text = cell(m)
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteByte('\n')
	}
	for i := range r.Costs {
		c := &r.Costs[i]
		if c.Rate == 0 {
			row("changes/s", c, func(m *measurement) string { return fmt.Sprintf("%.0f", m.PerSecond) })
		} else {
			row("p50 / p99, ms", c, func(m *measurement) string { return fmt.Sprintf("%.2f / %.2f", m.P50, m.P99) })
		}
		row("CPU µs a change", c, func(m *measurement) string { return fmt.Sprintf("%.1f", m.CPUMicros) })
		row("CPU in floors", c, func(m *measurement) string { return fmt.Sprintf("%.1f", m.CPUMicros/c.Floor.CPUMicros) })
		row("peak RSS, MiB", c, func(m *measurement) string { return mebibytes(m.Total.PeakRSS) })
	}
	return b.String()
}

// shares returns a table of where the exporter's CPU time goes: parts by loads, those that take most first.
func (r *report) shares() string {
	var b strings.Builder
	b.WriteString("| % of the exporter's CPU (µs a change) |")
	for _, c := range r.Costs {
		fmt.Fprintf(&b, " %s |", c.Load)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.Costs)) + "\n")
	var names []string
	for _, c := range r.Costs {
		for _, s := range c.Shares {
			if !slices.Contains(names, s.Of) {
				names = append(names, s.Of)
			}
		}
	}
	for _, name := range names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, c := range r.Costs {
			i := slices.IndexFunc(c.Shares, func(s share) bool { return s.Of == name })
			if i < 0 {
				b.WriteString(" – |")
			} else {
				fmt.Fprintf(&b, " %.0f (%.1f) |", c.Shares[i].Percent, c.Shares[i].Micros)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// page returns docs/performance.md.
func (r *report) page() string {
	return fmt.Sprintf(`# What a change costs

Written by `+"`make performance`"+`: %d objects of %d bytes on average, then %d changes, or as many as come in %d s;
%d CPUs, which exporter, API server and broker share; %s; an fsync of 4 KiB takes %.0f µs. Medians of one run.

- **floor** copies watch frames to Kafka, neither read nor compressed, and keeps no position: what nothing can be below.
- **exporter** has its journal on, an fsync before anything is sent, and zstd to Kafka.
- **usual** is a dynamic informer, json.Marshal and kafka-go's Writer, without a journal.

The API server serves frames that were rendered before, and the broker is kfake on loopback: what differs is the client.
*p50* and *p99* are the time from when a change is due at the API server until a consumer has it. Compare ratios, not
numbers: machines differ.

%s
[sizing.md](sizing.md) has the formulas.
`, r.Objects, r.ObjectBytes, r.Changes, r.Seconds, r.CPUs, r.Go, r.FsyncMicros, r.costs())
}
