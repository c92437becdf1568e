package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

const (
	defaultReadyTimeout = 5 * time.Minute
	defaultGrace        = 2 * time.Minute
	pollInterval        = 50 * time.Millisecond
	attemptTimeout      = 5 * time.Second
)

// Options configure what to run and when it counts as started.
type Options struct {
	// Name stands in errors. Required.
	Name string
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Env is the whole environment; nil inherits the parent's.
	Env []string
	// Dir is the working directory; empty is the parent's.
	Dir string
	// Log is the file that takes standard output and standard error. It is created, or appended to. Required.
	Log string
	// Ready is polled until it returns nil; its last error explains a timeout. nil means ready at once.
	Ready func(ctx context.Context) error
	// ReadyTimeout bounds the wait for Ready; 0 means five minutes, which is for machines that starve.
	ReadyTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL in Stop; 0 means two minutes.
	Grace time.Duration
}

// Process is a running child. Its methods may be called concurrently.
type Process struct {
	options  Options
	cmd      *exec.Cmd
	logStart int64
	done     chan struct{} // closed when the child was waited for
	waitErr  error         // written before done is closed

	mu    sync.Mutex
	asked bool  // Stop or Kill was called, so that the end is no surprise
	peak  int64 // the peak resident set as last sampled, see Usage
}

// ExitError reports that a child ended by itself before it was ready.
type ExitError struct {
	Name  string // the name from Options
	State string // how it ended, such as "exit status 1"
	Log   string // the log file
	Tail  string // the end of what this child wrote to it
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s ended before it was ready (%s); the end of its log %s:\n%s", e.Name, e.State, e.Log, e.Tail)
}

// Start starts a child and returns when it is ready. ctx bounds the start only; the child runs until Stop or Kill, or
// until this process ends. When Start returns an error nothing runs: an *ExitError if the child ended by itself, else
// an error that holds the last answer of Ready and the end of the log.
func Start(ctx context.Context, options Options) (*Process, error) {
	p := &Process{options: options, done: make(chan struct{})}
	log, err := p.openLog()
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(options.Path, options.Args...)
	p.cmd.Env, p.cmd.Dir = options.Env, options.Dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = attributes()

	started := make(chan error, 1)
	go p.run(started)
	err = <-started
	closeErr := log.Close() // the child has a descriptor of its own by now
	if err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", options.Name, err)
	}
	if err := errors.Join(closeErr, p.awaitReady(ctx)); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// run starts the child and waits for it on one OS thread. The kernel ties the child's life to the thread that forked
// it, not to the process, so that thread must live exactly as long as the child.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		err = p.cmd.Wait()
	}
	p.waitErr = err
}

// awaitReady polls Ready until it is content, the child ends, or time is up.
func (p *Process) awaitReady(ctx context.Context) error {
	if p.options.Ready == nil {
		return nil
	}
	timeout := p.options.ReadyTimeout
	if timeout == 0 {
		timeout = defaultReadyTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		err := p.attempt(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return &ExitError{Name: p.options.Name, State: p.state(), Log: p.options.Log, Tail: p.tail()}
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time (%w): %w; the end of its log %s:\n%s",
				p.options.Name, ctx.Err(), err, p.options.Log, p.tail())
		case <-poll.C:
		}
	}
}

// attempt asks Ready once. One question may hang, as with a server that accepts and does not answer, and must not
// use up the whole time.
func (p *Process) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return p.options.Ready(ctx)
}

// Pid returns the child's process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the child has ended and was waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Log returns the path of the log file.
func (p *Process) Log() string { return p.options.Log }

// Result waits for the child's end and returns nil if it was a success, as for a tool that ends by itself; else an
// error that holds the end of the log.
func (p *Process) Result() error {
	<-p.done
	if p.waitErr == nil {
		return nil
	}
	return fmt.Errorf("%s: %s; the end of its log %s:\n%s", p.options.Name, p.state(), p.options.Log, p.tail())
}

// Stop asks the child and its group to end (SIGTERM), kills them after the grace period, and returns when the child has
// ended. It returns an error if the child had to be killed, or had ended before without being asked; the child is gone in
// either case.
func (p *Process) Stop() error {
	if p.ended() {
		return p.surprise()
	}
	p.expectEnd()
	if err := terminate(p.cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(fmt.Errorf("stop %s: %w", p.options.Name, err), p.Kill())
	}
	grace := p.options.Grace
	if grace == 0 {
		grace = defaultGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		err := fmt.Errorf("%s did not end within %v of SIGTERM and was killed; its log is %s",
			p.options.Name, grace, p.options.Log)
		return errors.Join(err, p.Kill())
	}
}

// Kill ends the child at once (SIGKILL), with all processes of its group, and returns when it has ended. A child that
// has ended before is no error.
func (p *Process) Kill() error {
	p.expectEnd()
	if p.ended() {
		return nil
	}
	err := kill(p.cmd.Process)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.options.Name, err)
	}
	<-p.done
	return nil
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// expectEnd notes that the end is wanted and takes the last sample of a living child.
func (p *Process) expectEnd() {
	if !p.ended() {
		p.sample()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
}

// surprise returns an error if the child ended without being asked.
func (p *Process) surprise() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return nil
	}
	return fmt.Errorf("%s had ended by itself (%s); the end of its log %s:\n%s",
		p.options.Name, p.state(), p.options.Log, p.tail())
}

// state describes how the child ended. Only to be called when done is closed.
func (p *Process) state() string {
	if p.waitErr == nil {
		return "exit status 0"
	}
	return p.waitErr.Error()
}
