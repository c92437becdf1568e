package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

// TestTheConfigurationOfTheReadmeDelivers takes every YAML block of the README and of the recipes as a file. A newcomer's
// broker has no topics and no streams, so they have to be made.
func TestTheConfigurationOfTheReadmeDelivers(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "recipes", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(content), "```yaml\n")[1:] {
			text, _, _ := strings.Cut(block, "```")
			cfg, err := config.Load(write(t, "page.yaml", text))
			if err != nil {
				t.Fatalf("%s: %v\n%s", page, err, text)
			}
			found++
			for _, s := range cfg.Sinks {
				if s.Kafka != nil && !s.Kafka.CreateTopics.Enabled || s.NATS != nil && !s.NATS.Create.Enabled {
					t.Errorf("%s: sink %s waits for somebody to make its topics or stream", page, s.Name)
				}
			}
		}
	}
	if found < 2 {
		t.Fatalf("%d configurations in pages", found)
	}
}

// TestCommandsOfTheReadmeAreUnderstood runs each command of the program that the README names, with --help in place of
// doing it.
func TestCommandsOfTheReadmeAreUnderstood(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for line := range strings.Lines(string(readme)) {
		rest, ok := strings.CutPrefix(line, "bin/exporter ")
		if !ok {
			continue
		}
		commands++
		rest, _, _ = strings.Cut(rest, "#")
		args := strings.Fields(rest)
		for i, arg := range args {
			if strings.HasPrefix(arg, "configs/") {
				if _, err := config.Load(filepath.Join("..", "..", arg)); err != nil {
					t.Error(err)
				}
				args[i] = filepath.Join("..", "..", arg)
			}
		}
		if code, _, stderr := try(t, append(args, "--help")...); code != 0 {
			t.Errorf("%s: %s", line, stderr)
		}
	}
	if commands < 2 {
		t.Errorf("the README names %d commands", commands)
	}
}
