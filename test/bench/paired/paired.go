package paired

import (
	"slices"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/process"
)

// CPU is what this process and a server have used so far; 0 where that cannot be told.
func CPU(server *process.Process) time.Duration {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0
	}
	return time.Duration(own.Utime.Nano()+own.Stime.Nano()) + server.Usage().CPU
}

// Ratios divides a by b, round by round. Both have as many.
func Ratios(a, b []float64) []float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	return all
}

// Median is the middle of values, the upper one of two. There is at least one.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
