package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of CPU time in /proc: user space always sees 100 a second.
const clockTick = 10 * time.Millisecond

// attributes make the kernel kill the child with its parent. The group of its own keeps a Ctrl-C at the terminal from
// reaching the child before its owner has decided in which order things end.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// liveUsage reads the usage of a running process. A process that has just ended yields zero.
func liveUsage(p *os.Process) Usage {
	if p == nil {
		return Usage{}
	}
	dir := fmt.Sprintf("/proc/%d/", p.Pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return Usage{}
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return Usage{}
	}
	return Usage{CPU: cpuTime(stat), PeakRSS: peakRSS(status)}
}

// cpuTime takes utime and stime from a stat line. The program's name, in parentheses, may hold blanks, so fields are
// counted behind it.
func cpuTime(stat []byte) time.Duration {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}

// peakRSS takes the high-water mark of the resident set from a status file.
func peakRSS(status []byte) int64 {
	for line := range strings.Lines(string(status)) {
		value, found := strings.CutPrefix(line, "VmHWM:")
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return 0
		}
		return kilobytes << 10
	}
	return 0
}
