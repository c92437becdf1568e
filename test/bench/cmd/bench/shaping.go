package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// shapingBar is how much of the CPU per change of an exporter that shapes nothing one with default rules may take.
const shapingBar = 1.15

// shapingRounds is how often each way is measured, one after the other in turn. The least of each counts: what else the
// machine does only adds.
const shapingRounds = 3

// way is one way to shape the same changes.
type way struct {
	Name   string    `json:"name"`
	Rule   string    `json:"rule"`               // keys of the rule
	Micros []float64 `json:"cpuMicrosPerChange"` // of each round
	Ratio  float64   `json:"ratio"`              // of the least to the least of the first way
	bar    float64   // 0 where there is none
}

// shaping compares what it costs to shape. The first way is to shape nothing.
type shaping struct {
	Ways []way `json:"ways"`
}

func shapingWays() []way {
	return []way{
		{Name: "none", Rule: ", redact: none"},
		{Name: "default", bar: shapingBar},
		{Name: "fact", Rule: `, filter: 'change.name != "" && change.name != "x"'`},
		{Name: "object", Rule: `, filter: 'object.metadata.name != "x"'`},
	}
}

// measureShaping runs the exporter in all ways in turn.
func measureShaping(ctx context.Context, o options, c *corpus.Corpus) (*shaping, error) {
	s := &shaping{Ways: shapingWays()}
	for round := range shapingRounds {
		for i := range s.Ways {
			w := &s.Ways[i]
			name := fmt.Sprintf("shaping-%s-%d", w.Name, round+1)
			fmt.Fprintf(os.Stderr, "measuring %s\n", name)
			m, err := measure(ctx, o, c, exporterWith(o.exporter, name, name, w.Rule))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if !m.Delivered.Complete() {
				return nil, fmt.Errorf("%s: what arrived is not what happened: %+v", name, m.Delivered)
			}
			w.Micros = append(w.Micros, m.CPUMicros)
		}
	}
	s.compare()
	return s, nil
}

func (s *shaping) compare() {
	for i := range s.Ways {
		s.Ways[i].Ratio = slices.Min(s.Ways[i].Micros) / slices.Min(s.Ways[0].Micros)
	}
}

func (s *shaping) missed() []string {
	var missed []string
	for _, w := range s.Ways {
		if w.bar > 0 && w.Ratio > w.bar {
			missed = append(missed, fmt.Sprintf("CPU per change with %s rules: %.3f of what it is without shaping, at most %.3f", w.Name, w.Ratio, w.bar))
		}
	}
	return missed
}

// print writes one line a way.
func (s *shaping) print(w io.Writer) {
	fmt.Fprintf(w, "\nshaping : none, CPU per change, the least of %d rounds\n", shapingRounds)
	for _, way := range s.Ways {
		fmt.Fprintf(w, "  %-8s %.3f", way.Name, way.Ratio)
		if way.bar > 0 {
			fmt.Fprintf(w, " (bar %.3f)", way.bar)
		}
		fmt.Fprintf(w, "   %.1f µs of %.1f%s\n", slices.Min(way.Micros), way.Micros, way.Rule)
	}
}
