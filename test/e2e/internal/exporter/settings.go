package exporter

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
)

// Settings are what tests vary in a configuration.
type Settings struct {
	Dir        string // of the configuration, the journal and the log; of this exporter alone
	Kubeconfig string
	Cluster    string   // the name of the cluster; "" is "e2e"
	Select     []string // resources as kubectl writes them
	// Resources are whole rules, as in the file, in the place of Select.
	Resources []map[string]any

	Kafka map[string]any // more keys of the Kafka sink, in the place of those that are set here
	NATS  map[string]any // as well

	// File is written to by the only sink, in the place of Kafka and NATS.
	File string
	// Sinks are whole sinks, as in the file, in the place of all others.
	Sinks []map[string]any

	// History is the folder of a history that is written without a configuration file: nothing else counts then.
	History string

	KafkaBrokers []string
	TopicPrefix  string // topics are PREFIX.RESOURCE
	NATSURL      string
	Stream       string // and the first token of the subjects
	Bucket       string // of NATS, which a third sink, "kv", fills; "" is no such sink

	Rule      mapping // further keys of the one rule
	Redaction mapping // the section of that name
	Audit     mapping // as well
	Journal   mapping // further keys of the section of that name
	State     mapping // the section of that name
	Election  mapping // as well
	Admin     mapping // further keys of the section of that name

	DeadLetters mapping // of the sink "nats"
	Routes      []mapping

	Watermarks   string // of both sinks, as in the file; empty leaves the default
	Format       string // of both sinks, as in the file; empty leaves the default
	DrainTimeout string // as in the file; empty leaves the default

	Env  []string // beside what this process has
	Wrap []string // a command that ends by executing what follows it, and begins with its program
}

// JournalDir is the directory of the journal, unless Journal sets another.
func (s Settings) JournalDir() string { return filepath.Join(s.Dir, "journal") }

type mapping = map[string]any

// content returns the configuration. JSON is YAML.
func (s Settings) content(listen string) mapping {
	c := mapping{
		"cluster":   mapping{"name": cmp.Or(s.Cluster, "e2e"), "kubeconfig": s.Kubeconfig},
		"resources": []mapping{{"select": s.Select}},
		"sinks":     s.sinks(),
		"journal":   mapping{"dir": s.JournalDir()},
		"admin":     mapping{"listen": listen},
		// Servers come back within seconds in a test; half a minute of back-off would only make it slow.
		"delivery": mapping{"retry": mapping{"min": "50ms", "max": "1s"}},
	}
	maps.Copy(c["resources"].([]mapping)[0], s.Rule)
	if s.Resources != nil {
		c["resources"] = s.Resources
	}
	if s.Routes != nil {
		c["routes"] = s.Routes
	}
	if s.Redaction != nil {
		c["redaction"] = s.Redaction
	}
	if s.Audit != nil {
		c["audit"] = s.Audit
	}
	if s.State != nil {
		c["state"] = s.State
	}
	if s.Election != nil {
		c["election"] = s.Election
	}
	maps.Copy(c["journal"].(mapping), s.Journal)
	maps.Copy(c["admin"].(mapping), s.Admin)
	if s.DrainTimeout != "" {
		c["delivery"].(mapping)["drainTimeout"] = s.DrainTimeout
	}
	return c
}

// WholeSinks are the sinks as they are in the file.
func (s Settings) WholeSinks() []map[string]any { return s.sinks() }

func (s Settings) sinks() []mapping {
	if s.Sinks != nil {
		return s.Sinks
	}
	if s.File != "" {
		return []mapping{{"name": "file", "stdout": mapping{"path": s.File}}}
	}
	toKafka := mapping{
		"brokers":      s.KafkaBrokers,
		"topic":        s.TopicPrefix + ".{resource}",
		"createTopics": mapping{"enabled": true, "partitions": 4},
	}
	maps.Copy(toKafka, s.Kafka)
	toNATS := mapping{
		"url":     s.NATSURL,
		"stream":  s.Stream,
		"subject": s.Stream + ".{group}.{resource}.{namespace}.{name}",
		"create":  mapping{"enabled": true},
		"headers": true,
	}
	maps.Copy(toNATS, s.NATS)
	all := []mapping{{"name": "kafka", "kafka": toKafka}, {"name": "nats", "nats": toNATS}}
	if s.Bucket != "" {
		all = append(all, mapping{"name": "kv", "nats": mapping{
			"url": s.NATSURL, "mode": "kv", "bucket": s.Bucket, "subject": "{cluster}.{group}.{resource}.{namespace}.{name}",
			"create": mapping{"enabled": true}, "headers": true,
		}})
	}
	if s.DeadLetters != nil {
		all[1]["deadLetters"] = s.DeadLetters
	}
	if s.Watermarks != "" {
		for _, sink := range all {
			sink["watermarks"] = s.Watermarks
		}
	}
	if s.Format != "" {
		for _, sink := range all {
			sink["format"] = s.Format
		}
	}
	return all
}

// write writes the configuration into a file of that name and returns its path.
func (s Settings) write(name, listen string) (string, error) {
	text, err := json.MarshalIndent(s.content(listen), "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path) // a running exporter reads it at once
}
