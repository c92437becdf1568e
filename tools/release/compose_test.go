package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

// TestTheComposeFileFollowsTheSpecification loads the demo of deploy/compose as Docker Compose does. There is no daemon here
// that could start it.
func TestTheComposeFileFollowsTheSpecification(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{filepath.Join("..", "..", "deploy", "compose", "compose.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api", "kafka", "exporter", "consumer"} {
		service, err := project.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		if service.Image == "" && service.Build == nil {
			t.Errorf("%s has neither an image nor a build", name)
		}
		if service.Build != nil {
			if _, err := os.Stat(filepath.Join(service.Build.Context, "Dockerfile")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, volume := range service.Volumes {
			if _, err := os.Stat(volume.Source); volume.Type == "bind" && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for other, condition := range service.DependsOn {
			if condition.Condition == "service_healthy" && project.Services[other].HealthCheck == nil {
				t.Errorf("%s waits until %s is healthy, which has no check", name, other)
			}
		}
	}
}
