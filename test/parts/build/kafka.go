package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Kafka returns the directory that holds the Apache Kafka broker and everything it needs at run time, as jar files:
// the class path is "DIRECTORY/*". Maven fetches them, as its own settings define.
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
	return classPath(ctx, "the Iceberg sink for Kafka Connect", "150 MB", "iceberg", "test/iceberg/pom.xml")
}

// JDBCSink returns the same of Debezium's sink for databases, with its drivers.
func JDBCSink(ctx context.Context) (string, error) {
	return classPath(ctx, "Debezium's JDBC sink", "34 MB", "jdbc", "test/jdbc/pom.xml")
}

// OpenSearch returns the directory of the distribution of OpenSearch: what its archive has at its top.
func OpenSearch(ctx context.Context) (string, error) {
	dir, err := mavenArtifacts(ctx, "OpenSearch", "56 MB", "opensearch", "test/opensearch/pom.xml", "unpack-dependencies")
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "opensearch-*"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("OpenSearch is one of %q; delete %s and try again", found, dir)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// classPath copies what a pom.xml depends on into the cache.
func classPath(ctx context.Context, title, size, name, description string) (string, error) {
	return mavenArtifacts(ctx, title, size, name, description, "copy-dependencies")
}

// mavenArtifacts brings what a pom.xml depends on into the cache, by a goal of Maven's dependency plugin.
func mavenArtifacts(ctx context.Context, title, size, name, description, goal string) (string, error) {
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
			return dependencies(ctx, pom, goal, temporary, log)
		},
	}.provide(ctx)
}

func dependencies(ctx context.Context, pom, goal, out, log string) error {
	tool, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("%w; install Maven 3.8 or later and put it on PATH", err)
	}
	// Maven's record of unpacked files belongs beside the files: beside pom.xml it would prevent unpacking again.
	markers := filepath.Join(out, "markers")
	args := []string{"-B", "-ntp", "-f", pom, "dependency:" + goal, "-DoutputDirectory=" + out, "-DmarkersDirectory=" + markers}
	return run(ctx, "mvn", tool, args, filepath.Dir(pom), nil, log)
}
