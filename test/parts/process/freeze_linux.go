package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// freezeWithin bounds the wait for the threads of a process to stop.
const freezeWithin = 10 * time.Second

// Freeze stops a process where it is, as a machine that is suspended does. It returns when each of its threads has stopped:
// the signal alone leaves those on other processors running for a moment, in which a server may still answer.
func (p *Process) Freeze() error {
	if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(freezeWithin); ; time.Sleep(time.Millisecond) {
		stopped, err := allThreadsStopped(p.Pid())
		switch {
		case err != nil:
			return err
		case stopped:
			return nil
		case time.Now().After(deadline):
			return errors.New("a thread of the frozen process runs")
		}
	}
}

// Resume lets a frozen process continue.
func (p *Process) Resume() error { return syscall.Kill(p.Pid(), syscall.SIGCONT) }

// allThreadsStopped reads the states of all threads, see proc_pid_stat(5).
func allThreadsStopped(pid int) (bool, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(files) == 0 {
		return false, errors.Join(os.ErrProcessDone, err)
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return false, err
		}
		state := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[0]
		if state[0] != 'T' {
			return false, nil
		}
	}
	return true, nil
}
