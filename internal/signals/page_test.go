package signals

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// registryHandler pauses sinks of one name in a registry, as an exporter with that sink does.
type registryHandler struct {
	*Registry
	sink string
}

func (h registryHandler) List() ([]Signal, error) { return h.Registry.List(), nil }

func (h registryHandler) Letters(string, uint64, uint64) ([]json.RawMessage, error) { return nil, nil }

func (h registryHandler) Submit(ctx context.Context, r Request) (Signal, error) {
	return h.Execute(ctx, r, func(r Request) (Signal, error) {
		s := r.New(noon)
		if s.Sink != h.sink {
			return h.Refuse(ctx, s, fmt.Sprintf("no sink %q is configured; there are: %s", s.Sink, h.sink)), nil
		}
		return s, h.Commit(ctx, s.ID, func(b *Book) { b.Put(s) })
	})
}

var pipelineBlock = regexp.MustCompile("(?s)```sh tested by TestAPipelineAsksAsThePageSays\n(.*?)```")

// TestAPipelineAsksAsThePageSays runs the example of docs/signals.md, with the address of a server of this test.
func TestAPipelineAsksAsThePageSays(t *testing.T) {
	page, err := os.ReadFile("../../docs/signals.md")
	if err != nil {
		t.Fatal(err)
	}
	block := pipelineBlock.FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no such block")
	}
	h := registryHandler{NewRegistry((&memoryStore{}).save), "main"}
	server := newGuardedServer(t, h)
	dir := t.TempDir()
	run := func(script string) (string, error) {
		command := exec.CommandContext(t.Context(), "sh", "-c", script)
		command.Dir = dir
		out, err := command.CombinedOutput()
		return string(out), err
	}
	script := strings.ReplaceAll(string(block[1]), "http://localhost:8080", server.url)
	server.write(dir+"/token", token+"\n")
	var repeating sync.WaitGroup
	for range 2 {
		repeating.Go(func() {
			if out, err := run(strings.ReplaceAll(script, "answer.json", t.TempDir()+"/answer.json")); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	repeating.Wait()
	if all := h.Registry.List(); len(all) != 1 || all[0].ID != "release-1.42-pause" || all[0].Until.Sub(all[0].Created).Minutes() != 30 {
		t.Errorf("the signals are %+v", all)
	}
	for name, wrong := range map[string]string{
		"the sink":     strings.NewReplacer("main", "mian", "release-1.42-pause", "other").Replace(script),
		"the ID":       strings.Replace(script, "30m", "40m", 1),
		"a member":     strings.Replace(script, `"for"`, `"duration"`, 1),
		"the token":    strings.Replace(script, "Bearer ", "Bearer x", 1),
		"the duration": strings.Replace(script, `"30m"`, "30", 1),
	} {
		if out, err := run(wrong); err == nil {
			t.Errorf("with another %s the step does not fail: %s", name, out)
		}
	}
}
