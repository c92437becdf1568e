package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Kafka returns the directory that holds the Apache Kafka broker and everything it needs at run time, as jar files:
// the class path is "DIRECTORY/*". Maven fetches them, from where its own settings say.
func Kafka(ctx context.Context) (string, error) {
	return classPath(ctx, "the Kafka broker's class path", "44 MB", "kafka", "test/kafka/pom.xml")
}

// KafkaTools returns the same of Kafka's console consumer and of Kafka Connect.
func KafkaTools(ctx context.Context) (string, error) {
	return classPath(ctx, "the class path of Kafka's tools", "44 MB", "kafka-tools", "test/kafka/tools/pom.xml")
}

// Flink returns the same of Flink's SQL client and a cluster inside its process.
func Flink(ctx context.Context) (string, error) {
	return classPath(ctx, "the class path of Flink's SQL client", "170 MB", "flink", "test/flink/pom.xml")
}

// IcebergSink returns the directory of the jar files of Apache Iceberg's sink for Kafka Connect.
func IcebergSink(ctx context.Context) (string, error) {
	return classPath(ctx, "the Iceberg sink for Kafka Connect", "80 MB", "iceberg", "test/iceberg/pom.xml")
}

// classPath copies what a pom.xml depends on into the cache.
func classPath(ctx context.Context, title, size, name, description string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	pom := filepath.Join(root, filepath.FromSlash(description))
	key, err := digest([]string{pom})
	if err != nil {
		return "", fmt.Errorf("%s: %w", description, err)
	}
	return artifact{
		title: title,
		takes: "about 20 seconds, " + size,
		path:  filepath.Join(cache, name, key),
		make: func(ctx context.Context, temporary, log string) error {
			return copyDependencies(ctx, pom, temporary, log)
		},
	}.provide(ctx)
}

func copyDependencies(ctx context.Context, pom, out, log string) error {
	tool, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("%w; install Maven 3.8 or later and put it on PATH", err)
	}
	args := []string{"-B", "-ntp", "-f", pom, "dependency:copy-dependencies", "-DoutputDirectory=" + out}
	return run(ctx, "mvn", tool, args, filepath.Dir(pom), nil, log)
}
