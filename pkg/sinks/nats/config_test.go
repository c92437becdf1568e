package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

func validConfig() Config {
	return Config{URL: "nats://127.0.0.1:4222", Stream: "K8S", Subject: "k8s.{cluster}.{name}"}
}

func validBucketConfig() Config {
	return Config{URL: "nats://127.0.0.1:4222", Mode: modeKV, Bucket: "objects", Subject: "{cluster}.{group}.{resource}.{namespace}.{name}"}
}

func TestBadConfigurationIsNamedByItsPath(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no scheme":          {func(c *Config) { c.URL = "nats://a:1,127.0.0.1:4222" }, `nats.url: address 2 is not of the form nats://host:port`},
		"stream with a dot":  {func(c *Config) { c.Stream = "a.b" }, `nats.stream: "a.b" has '.' at position 2; a stream name has no blanks and none of . * > / \`},
		"unknown":            {func(c *Config) { c.Subject = "k8s.{foo}" }, `nats.subject: unknown placeholder "{foo}" at position 5 of "k8s.{foo}"; allowed are {cluster} {group} {version} {resource} {kind} {namespace} {name} {type}`},
		"empty token":        {func(c *Config) { c.Subject = "k8s..{name}" }, `nats.subject: "k8s..x" has an empty token; write no dot at the ends and no two in a row`},
		"wildcard":           {func(c *Config) { c.Subject = "k8s.{name}.*" }, `nats.subject: "k8s.x.*" has a blank, a wildcard or a character that is not ASCII: "*"`},
		"the server's own":   {func(c *Config) { c.Subject = "$JS.{name}" }, `nats.subject: "$JS.x" begins with $, which is the server's own`},
		"mode":               {func(c *Config) { c.Mode = "stream" }, `nats.mode: "stream" is not one of jetstream, kv`},
		"bucket of a stream": {func(c *Config) { c.Bucket = "b" }, `nats.bucket: has no effect in mode jetstream: it is for mode kv`},
		"bucket with a dot":  {func(c *Config) { *c = validBucketConfig(); c.Bucket = "a.b" }, `nats.bucket: "a.b" has '.' at position 2; a bucket's name has letters, digits, _ and - only`},
		"kv that ages": {func(c *Config) { *c = validBucketConfig(); c.Create.MaxAge = time.Hour },
			`nats.create.maxAge: objects that do not change would disappear from the bucket; leave it out in mode kv`},
		"key with a colon": {func(c *Config) {
			*c = validBucketConfig()
			c.Subject = "k:{cluster}.{group}.{resource}.{namespace}.{name}"
		},
			`nats.subject: "k:{cluster}.{group}.{resource}.{namespace}.{name}" has ':', which a key cannot have; legal are letters, digits and the signs -/_=. only`},
		"shared key": {func(c *Config) { *c = validBucketConfig(); c.Subject = "{cluster}.{group}.{resource}.{name}" },
			`nats.subject: "{cluster}.{group}.{resource}.{name}" does not give each object a subject of its own, which mode kv needs; write {namespace} between dots`},
		"key without the cluster": {func(c *Config) { *c = validBucketConfig(); c.Subject = "{group}.{resource}.{namespace}.{name}" },
			`nats.subject: "{group}.{resource}.{namespace}.{name}" does not give each object a subject of its own, which mode kv needs; write {cluster} between dots`},
		"timeout": {func(c *Config) { c.AckTimeout = -time.Second }, `nats.ackTimeout: too short: found -1s, expected at least 100ms`},
		"bytes":   {func(c *Config) { c.MaxInFlightBytes = -1 }, `nats.maxInFlightBytes: -1 is not positive`},
		"inbox":   {func(c *Config) { c.InboxPrefix = "a.>" }, `nats.inboxPrefix: "a.>" has a blank, a wildcard or a character that is not ASCII: ">"`},
		"two ways": {func(c *Config) {
			c.AllowCleartextCredentials, c.Token, c.Credentials = true, credentials.Text("t"), credentials.InFile("f")
		}, `nats.token: credentials is set too; use one way to authenticate`},
		"half a certificate": {func(c *Config) { c.TLS.Cert = "c" }, `nats.tls.cert: cert and key belong together; set both or none`},
		"storage":            {func(c *Config) { c.Create.Storage = "disk" }, `nats.create.storage: "disk" is not one of file, memory`},
		"replicas":           {func(c *Config) { c.Create.Replicas = 7 }, `nats.create.replicas: 7 is not between 1 and 5`},
		"long window": {func(c *Config) { c.Create.MaxAge, c.Create.Duplicates = time.Minute, time.Hour },
			`nats.create.duplicates: 1h0m0s is longer than maxAge, 1m0s; the server refuses that`},
	} {
		c := validConfig()
		test.change(&c)
		if err := c.Validate(); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v\nwant %s", name, err, test.want)
		}
	}
}

func TestNoErrorShowsAPassword(t *testing.T) {
	c := validConfig()
	c.URL, c.User, c.Password = "nats://user:hunter2@ho st:4222", "", credentials.Text("hunter2")
	if err := c.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// TestDuplicatesAreNotKnownForLongerThanTheMessagesStay: the server refuses that.
func TestDuplicatesAreNotKnownForLongerThanTheMessagesStay(t *testing.T) {
	c := Config{Create: Create{MaxAge: time.Minute}}
	c.SetDefaults()
	if c.Create.Duplicates != time.Minute {
		t.Errorf("duplicates %v outlast the messages", c.Create.Duplicates)
	}
}
