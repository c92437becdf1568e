package process

import "time"

// Usage is what a child has cost.
type Usage struct {
	// CPU is user and system time together.
	CPU time.Duration
	// PeakRSS is the largest resident set in bytes, or 0 if the system does not report it.
	PeakRSS int64
}

// Usage returns what the child has cost: up to now while it runs (Linux; elsewhere zero), in total after it has
// ended. The peak of a child that ended by itself is taken from the last call while it ran; the kernel's own final
// number also counts the parent's memory at the moment of the fork and would mislead.
func (p *Process) Usage() Usage {
	if !p.ended() {
		return p.sample()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := Usage{PeakRSS: p.peak}
	if state := p.cmd.ProcessState; state != nil {
		u.CPU = state.UserTime() + state.SystemTime()
	}
	return u
}

// sample reads the usage of the living child and remembers the peak.
func (p *Process) sample() Usage {
	u := liveUsage(p.cmd.Process)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peak = max(p.peak, u.PeakRSS)
	u.PeakRSS = p.peak
	return u
}
