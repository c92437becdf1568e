package nats

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Somebody edits the stream while it is written, or while the exporter is down, and takes that back later.
func TestAnEditedStreamLosesRepeatsAndReordersNothing(t *testing.T) {
	for name, edit := range map[string]func(*jetstream.StreamConfig){
		"no batches any more": func(c *jetstream.StreamConfig) { c.AllowBatchPublish = false },
		"no batches, and a short window": func(c *jetstream.StreamConfig) {
			c.AllowBatchPublish, c.Duplicates = false, 10*time.Second
		},
		"other subjects":   func(c *jetstream.StreamConfig) { c.Subjects = []string{"k8s.c.>", "k8s.other.>"} },
		"a source":         func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "ELSEWHERE"}} },
		"no direct access": func(c *jetstream.StreamConfig) { c.AllowDirect = false },
	} {
		for _, down := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", while the exporter is down"}[down], func(t *testing.T) {
				server := serve(t, "")
				js := client(t, server.URL())
				createStream(t, js, jetstream.StreamConfig{Name: "ELSEWHERE", Subjects: []string{"elsewhere.>"}})
				before := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true, AllowDirect: true}
				createStream(t, js, before)
				s := opened(t, configFor(server.URL()), quiet)
				update := func(config jetstream.StreamConfig) {
					t.Helper()
					if _, err := js.UpdateStream(t.Context(), config); err != nil {
						t.Fatal(err)
					}
				}
				allNumbered(t, s, 1, 3)
				state, next := s.State(0), 4
				allNumbered(t, s, next, 6) // and what is stored does not know
				edited := before
				edited.Subjects = slices.Clone(before.Subjects)
				edit(&edited)
				update(edited)
				if down {
					s = restarted(t, server.URL(), state, 9)
				} else {
					next = 7
				}
				allNumbered(t, s, next, 9)
				update(before)
				allNumbered(t, s, 10, 12)
				if got, want := versionsOf(t, js), "web/1 web/2 web/3 web/4 web/5 web/6 web/7 web/8 web/9 web/10 web/11 web/12"; got != want {
					t.Errorf("the stream holds %s, want %s", got, want)
				}
			})
		}
	}
}

// The answers to a batch come too late, and the stream takes none any more when it is asked for that one.
func TestABatchInDoubtOfAStreamThatTakesNoneAnyMoreIsSettled(t *testing.T) {
	server := serve(t, "")
	js := client(t, server.URL())
	p := listen(t, strings.TrimPrefix(server.URL(), "nats://"))
	before := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true}
	createStream(t, js, before)
	s := opened(t, hasty("nats://"+p.address()), quiet)
	allNumbered(t, s, 1, 3)
	p.delay(true)
	if _, err := numbered(t, s, 4, 6); err == nil {
		t.Fatal("delivered without an answer")
	}
	before.AllowBatchPublish = false
	if _, err := js.UpdateStream(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	p.delay(false)
	allNumbered(t, s, 4, 9)
	if got, want := versionsOf(t, js), "web/1 web/2 web/3 web/4 web/5 web/6 web/7 web/8 web/9"; got != want {
		t.Errorf("the stream holds %s, want %s", got, want)
	}
}
