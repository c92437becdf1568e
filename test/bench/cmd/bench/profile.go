package main

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// profileHook is built into the exporter that is profiled, so that the released one needs none.
//
//go:embed profiled/profile.go.txt
var profileHook string

// share is a part of the CPU time of changes.
type share struct {
	Of      string  `json:"of"`
	Percent float64 `json:"percent"`
	Micros  float64 `json:"microsPerChange"`
}

// parts classify stacks, innermost frame first: the first that matches counts.
var parts = []struct {
	of    string
	stack *regexp.Regexp
}{
	{"garbage collection and allocation", regexp.MustCompile(`runtime\.(gcBgMarkWorker|gcAssistAlloc|mallocgc|bgsweep|bgscavenge|gcStart|growslice|newobject)`)},
	{"system calls", regexp.MustCompile(`^\S*(Syscall6|RawSyscall)`)},
	{"zstd for Kafka", regexp.MustCompile(`(?s)zstd.*EncodeAll.*/sinks/kafka`)},
	{"zstd for the journal", regexp.MustCompile(`zstd.*EncodeAll`)},
	{"HTTP/2 and TLS", regexp.MustCompile(`http2\.|crypto/tls`)},
	{"decoding", regexp.MustCompile(`/source/decode`)},
	{"redaction and seal", regexp.MustCompile(`/pkg/shape\.`)},
	{"changes from deltas", regexp.MustCompile(`/pkg/deltas|/pkg/source`)},
	{"Pebble", regexp.MustCompile(`cockroachdb/pebble`)},
	{"the rest of the journal", regexp.MustCompile(`/internal/journal`)},
	{"the rest of the Kafka sink", regexp.MustCompile(`/sinks/kafka`)},
	{"delivery", regexp.MustCompile(`/internal/delivery`)},
	{"the scheduler of Go", regexp.MustCompile(`runtime\.(schedule|mcall|mstart|park_m|sysmon|findRunnable)`)},
}

// profile runs the exporter once more under a load and returns the shares of its CPU time, largest first.
func profile(ctx context.Context, o options, c *corpus.Corpus, program string, changes int) ([]share, error) {
	s := exporterSystem(program)
	s.name, s.profile = "profiled", filepath.Join(o.dir, fmt.Sprintf("profile-%d-%t", o.rate, o.corpus.Events))
	if _, err := measureAfresh(ctx, o, c, s); err != nil {
		return nil, err
	}
	text, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", program, s.profile).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w", err)
	}
	return sharesOf(string(text), changes), nil
}

// sample is the head of a stack in the output of `go tool pprof -traces`: a time and the innermost frame.
var sample = regexp.MustCompile(`(?m)^ *([0-9.]+(?:ms|s|us)) +(.*(?:\n[^\n]+)*)`)

// sharesOf reads the output of `go tool pprof -traces`.
func sharesOf(traces string, changes int) []share {
	var total time.Duration
	took := map[string]time.Duration{}
	for _, stack := range strings.Split(traces, "-----------+-------------------------------------------------------\n")[1:] {
		found := sample.FindStringSubmatch(stack)
		if found == nil {
			continue
		}
		d, err := time.ParseDuration(found[1])
		if err != nil {
			continue
		}
		of := "other"
		for _, p := range parts {
			if p.stack.MatchString(found[2]) {
				of = p.of
				break
			}
		}
		total += d
		took[of] += d
	}
	var shares []share
	for of, d := range took {
		shares = append(shares, share{of, 100 * d.Seconds() / total.Seconds(), 1e6 * d.Seconds() / float64(changes)})
	}
	slices.SortFunc(shares, func(a, b share) int {
		if a.Percent != b.Percent {
			return int(b.Percent*1e6 - a.Percent*1e6)
		}
		return strings.Compare(a.Of, b.Of)
	})
	return shares
}
