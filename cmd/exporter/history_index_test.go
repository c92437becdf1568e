package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
)

// TestHistoryNamesWhyASinkIsNotRead for sinks with rows, flags that need each other, and a bus that is away, whose index can
// still be read.
func TestHistoryNamesWhyASinkIsNotRead(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "exporter.yaml")
	content := "resources: [{select: [pods]}]\nsinks:\n" +
		"  - {name: topic, kafka: {brokers: ['127.0.0.1:1'], topic: t}}\n" +
		"  - {name: rows, format: upsert, kafka: {brokers: ['127.0.0.1:1'], topic: u}}\n" +
		"  - {name: bucket, nats: {url: 'nats://127.0.0.1:1', mode: kv, bucket: b, subject: '{cluster}.{group}.{resource}.{namespace}.{name}'}}\n" +
		"  - {name: file, stdout: {}}\n"
	writeFile(t, config, content)
	for _, test := range []struct {
		flags []string
		code  exit.Code
		want  string
	}{
		{[]string{"--sink", "topic"}, exit.Usage, "--sink: belongs to --config"},
		{[]string{"--config", config}, exit.Usage, "--sink is missing"},
		{[]string{"--config", config, "--sink", "file"}, exit.Usage, "cannot be read back"},
		{[]string{"--config", config, "--sink", "rows"}, exit.Usage, "has rows, which lack what a history needs"},
		{[]string{"--config", config, "--sink", "bucket"}, exit.Usage, "has rows, which lack what a history needs"},
		{[]string{"--config", config, "--sink", "topic", "--dir", "s3://b/p"}, exit.Usage, "an index is in a folder"},
		{[]string{"--config", config, "--sink", "topic", "--dir", dir}, exit.Environment, "--dir " + dir + " without --config"},
	} {
		code, _, stderr := try(t, append([]string{"history", "log"}, test.flags...)...)
		if code != test.code || !strings.Contains(stderr, test.want) {
			t.Errorf("%v: exit %d, %q; want exit %d with %q", test.flags, code, stderr, test.code, test.want)
		}
	}
}
