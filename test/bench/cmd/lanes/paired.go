package main

import (
	"slices"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/process"
)

// usedCPU is the processor time that this process and a server have used so far; without this process where the system does
// not report it.
func usedCPU(server *process.Process) time.Duration {
	used := server.Usage().CPU
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return used
	}
	return used + time.Duration(own.Utime.Nano()+own.Stime.Nano())
}

// ratios divides a by b, round by round: what disturbs the machine disturbs both alike. Both have as many.
func ratios(a, b []float64) []float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	return all
}

// median is the middle of values, the upper one of two. There is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
