package paired

import (
	"slices"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/process"
)

// CPU is the processor time that this process and a server have used so far.
func CPU(server *process.Process) time.Duration { return OwnCPU() + server.Usage().CPU }

// OwnCPU is the processor time that this process has used so far; 0 if the system does not report it.
func OwnCPU() time.Duration {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0
	}
	return time.Duration(own.Utime.Nano() + own.Stime.Nano())
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
