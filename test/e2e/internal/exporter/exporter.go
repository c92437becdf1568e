package exporter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// readyWithin bounds how long an exporter may take until it is ready.
const readyWithin = 5 * time.Minute

// Exporter is an exporter that can be started again and again, with the same journal and addresses.
type Exporter struct {
	program  string
	settings Settings
	config   string
	address  string // of the admin server
	running  *process.Process
}

// New writes the configuration. Nothing runs yet.
func New(program string, settings Settings) (*Exporter, error) {
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	e := &Exporter{program: program, settings: settings, address: ports.Address(free[0])}
	e.config, err = settings.write("config.yaml", e.address)
	return e, err
}

// Configure edits the settings, for the next start.
func (e *Exporter) Configure(edit func(*Settings)) error {
	edit(&e.settings)
	var err error
	e.config, err = e.settings.write("config.yaml", e.address)
	return err
}

// Replace lets the next start run another program.
func (e *Exporter) Replace(program string) { e.program = program }

// Rule returns the further keys of the one rule.
func (e *Exporter) Rule() map[string]any { return e.settings.Rule }

// Config is the path of the configuration.
func (e *Exporter) Config() string { return e.config }

// ConfigSeries is the series of the metrics that is 1 once the file that is there now is the active configuration.
func (e *Exporter) ConfigSeries() (string, error) {
	text, err := os.ReadFile(e.config)
	sum := sha256.Sum256(text)
	return fmt.Sprintf("kubecdc_config_info{hash=%q}", hex.EncodeToString(sum[:])[:12]), err
}

// Start starts the exporter and returns when it is ready.
func (e *Exporter) Start(ctx context.Context) error { return e.start(ctx, e.Ready) }

// Launch starts the exporter and returns at once.
func (e *Exporter) Launch(ctx context.Context) error { return e.start(ctx, nil) }

func (e *Exporter) start(ctx context.Context, ready func(context.Context) error) error {
	command, env := append(slices.Clone(e.settings.Wrap), e.program, "run", "--config", e.config), append(os.Environ(), e.settings.Env...)
	if e.settings.History != "" {
		command = append(command[:len(command)-2], "--history", e.settings.History)
		env = append(env, "KUBECONFIG="+e.settings.Kubeconfig, "KUBECDC_ADMIN_LISTEN="+e.address)
	}
	p, err := process.Start(ctx, process.Options{
		Name: "exporter", Path: command[0], Args: command[1:], Env: env, Dir: e.settings.Dir, Log: e.Log(),
		Ready: ready, ReadyTimeout: readyWithin, Grace: readyWithin,
	})
	if err != nil {
		return err
	}
	e.running = p
	return nil
}

// Log is the path of the log, which holds all runs.
func (e *Exporter) Log() string { return filepath.Join(e.settings.Dir, "exporter.log") }

// Kill kills the exporter with SIGKILL. One that ended by itself before is an error.
func (e *Exporter) Kill() error {
	if e.running == nil {
		return nil
	}
	select {
	case <-e.running.Done():
		return fmt.Errorf("the exporter ended by itself: %w", e.result())
	default:
	}
	p := e.running
	e.running = nil
	return p.Kill()
}

// Stop ends the exporter with SIGTERM. Another exit code than 0 is an error.
func (e *Exporter) Stop() error {
	if e.running == nil {
		return nil
	}
	p := e.running
	e.running = nil
	return errors.Join(p.Stop(), p.Result())
}

// Pause lets the exporter stand still where it is, as a machine that is suspended does. Resume lets it go on.
func (e *Exporter) Pause() error { return e.running.Freeze() }

// Resume lets a paused exporter go on.
func (e *Exporter) Resume() error { return e.running.Resume() }

// Process is the running exporter, nil if none was started. It is the caller's to read, not to stop.
func (e *Exporter) Process() *process.Process { return e.running }

// result is how the exporter ended by itself; an exit code of 0 is no better then.
func (e *Exporter) result() error {
	if err := e.running.Result(); err != nil {
		return err
	}
	return errors.New("exit code 0")
}

// Ready returns nil if /readyz answers 200, else its reasons.
func (e *Exporter) Ready(ctx context.Context) error {
	code, text, err := e.Get(ctx, "/readyz")
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("/readyz: %d: %s", code, text)
	}
	return nil
}

// Address is that of the admin server, "127.0.0.1:PORT".
func (e *Exporter) Address() string { return e.address }

// Get asks the admin server.
func (e *Exporter) Get(ctx context.Context, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// RunSecond starts another exporter with the same configuration but for its admin address, waits for its end and returns
// its exit code and what it wrote to standard error.
func (e *Exporter) RunSecond(ctx context.Context) (int, string, error) {
	config, err := e.settings.write("second.yaml", "127.0.0.1:0")
	if err != nil {
		return 0, "", err
	}
	return Run(ctx, e.program, e.settings.Dir, "run", "--config", config)
}

// Run runs the program in a directory until it ends and returns its exit code and what it wrote to standard error. That it
// did not end before ctx is an error.
func Run(ctx context.Context, program, dir string, args ...string) (int, string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return 0, stderr.String(), fmt.Errorf("%s %v did not end: %w", program, args, ctx.Err())
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), stderr.String(), nil
	}
	return 0, stderr.String(), err
}

// LogTail returns the end of the log over all runs.
func (e *Exporter) LogTail() string {
	const most = 8 << 10
	text, err := os.ReadFile(e.Log())
	if err != nil {
		return err.Error()
	}
	if len(text) > most {
		text = text[len(text)-most:]
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	return string(text)
}
