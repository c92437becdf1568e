package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestAFirstStartIsQuiet starts sinks that create a topic for each type that there is. What comes by itself is no warning,
// and the number of lines grows with the sinks alone.
func TestAFirstStartIsQuiet(t *testing.T) {
	const sinks, maxLines = 3, 3*3 + 6 // that it delivers, its topics, and that it is drained at the stop
	c := surround(t).fixture(t)
	c.settings.Resources = []mapping{{"select": []string{"*"}}}
	for i := range sinks {
		name := fmt.Sprint("s", i)
		c.settings.Sinks = append(c.settings.Sinks, mapping{"name": name, "kafka": c.plainKafka(c.kafka, mapping{
			"topic":        c.name + "." + name + ".{group}.{resource}",
			"createTopics": mapping{"enabled": true, "partitions": 1, "replicationFactor": 1},
		})})
	}
	c.start()
	c.await("all topics", func() string {
		for i := range sinks {
			if line := fmt.Sprintf(`kubecdc_sink_backlog_changes{sink="s%d"} 0`+"\n", i); !strings.Contains(c.page("/metrics"), line) {
				return line
			}
		}
		return ""
	})
	c.awaitWell()
	c.must(c.exporter.Stop())
	log, err := os.ReadFile(c.exporter.Log())
	c.must(err)
	if n := strings.Count(string(log), " level="); n > maxLines || strings.Contains(string(log), "level=WARN") {
		t.Errorf("%d lines, want at most %d and no warning:\n%s", n, maxLines, log)
	}
}
