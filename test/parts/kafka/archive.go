package kafka

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// Archive returns the path of an archive of the broker's classes as the Java machine has them after loading. With it a
// broker starts with less than half of the processor time. Another Java machine than the one that wrote it ignores it.
func Archive(ctx context.Context) (string, error) {
	j, err := findJava(ctx)
	if err != nil {
		return "", err
	}
	return j.archive(ctx)
}

func (j java) archive(ctx context.Context) (string, error) {
	jars := filepath.Dir(j.classPath)
	return build.Provide(ctx, "the archive of the Kafka broker's classes", "about 20 seconds, 50 MB", jars+".jsa", j.writeArchive)
}

// writeArchive runs a broker that writes the classes which it has loaded when it ends in order.
func (j java) writeArchive(ctx context.Context, path, _ string) error {
	dir, err := os.MkdirTemp("", "kafka-archive-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return ports.Try(3, func(free []int) error {
		b, err := newBroker(ctx, j, 1, free[:1], free[1], Options{
			Dir: dir, Port: free[2], JVM: append([]string{"-XX:ArchiveClassesAtExit=" + path}, smallJVM...),
		})
		if err != nil {
			return err
		}
		if err := b.service.Start(ctx); err != nil {
			return errors.Join(err, b.Kill())
		}
		return b.Stop()
	})
}
