package kafka

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/process"
)

// clusterID is that of every cluster that tests start; they never meet.
const clusterID = "a3ViZWNkYy10ZXN0LTAwMQ"

// format writes what a broker must find in its data directory before its first start: Kafka's own tool does it, since
// the content changes with its versions. A directory that an earlier broker has used stays as it is.
func (j java) format(ctx context.Context, dir, config string) error {
	if _, err := os.Stat(filepath.Join(dir, "data", "meta.properties")); err == nil {
		return nil
	}
	// A short life is not worth compiling for.
	jvm := []string{"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	p, err := process.Start(ctx, process.Options{
		Name: "kafka.tools.StorageTool",
		Path: j.path,
		Args: j.arguments(jvm, "kafka.tools.StorageTool", "format", "--cluster-id", clusterID, "--config", config, "--ignore-formatted"),
		Dir:  dir,
		Log:  filepath.Join(dir, "format.log"),
	})
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return p.Result()
	case <-ctx.Done():
		return fmt.Errorf("format %s: %w", dir, ctx.Err())
	}
}
