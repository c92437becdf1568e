package main

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
)

// TestVerifyNamesWhyASinkIsRefused with the remedy, before any server is asked.
func TestVerifyNamesWhyASinkIsRefused(t *testing.T) {
	file := write(t, "config.yaml", `
cluster: {name: c}
resources: [{select: [pods]}]
sinks:
  - name: topic
    watermarks: 10s
    kafka: {brokers: ["127.0.0.1:1"], topic: "k8s.{resource}"}
  - {name: plain, kafka: {brokers: ["127.0.0.1:1"], topic: "plain.{resource}"}}
  - {name: hook, format: cloudevents, webhook: {url: "https://127.0.0.1:1/"}}
  - {name: bucket, nats: {url: "nats://127.0.0.1:1", mode: kv, bucket: b, subject: "{cluster}.{group}.{resource}.{namespace}.{name}"}}
journal: {dir: `+t.TempDir()+`}
`)
	for _, test := range []struct {
		args []string
		code exit.Code
		text string
	}{
		{nil, exit.Usage, "--sink is missing: expected one of topic, plain, bucket"},
		{[]string{"--sink", "none"}, exit.Usage, `no sink "none" is configured`},
		{[]string{"--sink", "hook"}, exit.Usage, "only Kafka and NATS can;"},
		{[]string{"--sink", "bucket"}, exit.Environment, "the sink bucket has no watermarks"},
		{[]string{"--sink", "plain"}, exit.Environment, "set `watermarks: 10s` in it"},
		{[]string{"--sink", "topic", "--bodies", "--stream-only"}, exit.Usage, "give one of them"},
		{[]string{"--sink", "topic", "--repair", "--stream-only"}, exit.Usage, "give one of them"},
		{[]string{"--sink", "topic", "--wait", "-1s"}, exit.Usage, "--wait -1s: expected"},
		{[]string{"--sink", "topic", "-o", "yaml"}, exit.Usage, "expected one of text, json"},
	} {
		code, stdout, stderr := try(t, append([]string{"verify", "--config", file}, test.args...)...)
		if code != test.code || stdout != "" || !strings.Contains(stderr, test.text) {
			t.Errorf("%v: exit %d, %q, %q; want exit %d with %q", test.args, code, stdout, stderr, test.code, test.text)
		}
	}
}
