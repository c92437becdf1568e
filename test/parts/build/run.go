package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/process"
)

const progressInterval = 15 * time.Second

// run runs a build tool to its end, reports now and then that it is still running, and fails if the tool does. The tool is
// the child of this process only: if ctx ends or this process dies, it goes too.
func run(ctx context.Context, name, path string, args []string, dir string, env []string, log string) error {
	if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	began := time.Now()
	p, err := process.Start(ctx, process.Options{Name: name, Path: path, Args: args, Dir: dir, Env: env, Log: log})
	if err != nil {
		return err
	}
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	for {
		select {
		case <-p.Done():
			return p.Result()
		case <-ctx.Done():
			return errors.Join(ctx.Err(), p.Kill())
		case <-progress.C:
			fmt.Fprintf(os.Stderr, "still building %s, %v\n", name, time.Since(began).Round(time.Second))
		}
	}
}
