package deltas

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts print now as what they expect; read the diff before you commit it")

// TestTranscripts plays testdata/*.txt: blocks of what the API server said, and under "----" what came out, one line a
// part of an observation. Lines of one block are queued before anything is popped. The language:
//
//	open [position] : known, known !gone ...      a queue that knows this much; the first block of a file
//	open within=ID : known ...                    one that was stopped within its first list
//	filter namespace                              only that namespace is wanted
//	ADDED|MODIFIED|DELETED object                 a watch event; an object is namespace/name uid@resourceVersion, and
//	                                              perhaps what summarize understands
//	BOOKMARK resourceVersion
//	first|resumed|relisted resourceVersion : object, object ...     a list, with its origin
//	broken resourceVersion : object ...           a first list after the journal was lost
//	stage first|relisted : object, object ...     objects of a list that comes in a later block
//	vanish                                        the resource is no longer served
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playFile(t, file) })
	}
}

func playFile(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := &player{t: t}
	var out []string
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		input, _, _ := strings.Cut(block, "\n----")
		out = append(out, strings.TrimRight(input, "\n")+"\n----\n"+p.play(input))
	}
	got := strings.Join(out, "\n")
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := strings.TrimSpace(string(text)) + "\n"; strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("the transcript now reads:\n%s", got)
	}
}

type player struct {
	t      *testing.T
	q      *Queue
	cfg    QueueConfig
	origin Origin
	staged map[string]*Object // what Stage gave for an object, by key and resourceVersion

	snapshots int // begun so far
	out       strings.Builder
}

func (p *player) play(input string) string {
	p.out.Reset()
	for _, line := range strings.Split(input, "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			p.say(line)
		}
	}
	if p.q != nil {
		p.pop()
	}
	return p.out.String()
}

func (p *player) pop() {
	for pop(p.t, p.q) {
	}
}

func (p *player) say(line string) {
	head, tail, _ := strings.Cut(line, ":")
	words := strings.Fields(head)
	var err error
	switch words[0] {
	case "open":
		p.open(words[1:], tail)
	case "filter":
		p.cfg.Filter = func(namespace string) bool { return namespace == words[1] }
		p.q = NewQueue(p.cfg)
	case "ADDED":
		err = p.q.Add(p.object(words[1:]))
	case "MODIFIED":
		err = p.q.Update(p.object(words[1:]))
	case "DELETED":
		err = p.q.Delete(p.object(words[1:]))
	case "BOOKMARK":
		err = p.q.Bookmark(words[1])
	case "first", "resumed", "relisted", "broken":
		err = p.list(words, tail)
	case "stage":
		err = p.stage(words[1], tail)
	case "vanish":
		p.stepping(p.q.Vanish)
	default:
		p.t.Fatalf("unknown line %q", line)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
}

func (p *player) open(words []string, tail string) {
	p.cfg = QueueConfig{
		Scope:  Scope{ID: "pods", Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}},
		Origin: func() Origin { return p.origin },
		Append: p.append,
		Now:    func() time.Time { return time.Unix(0, 0).UTC() },

		SnapshotID: func() string { p.snapshots++; return fmt.Sprint("S", p.snapshots) },
	}
	if len(words) > 0 {
		p.cfg.Stored.Position = words[0]
	}
	if id, within := strings.CutPrefix(p.cfg.Stored.Position, "within="); within {
		p.cfg.Stored.Position, p.cfg.Stored.Snapshot = "", id
	}
	for _, k := range fields(tail) {
		o := p.object(strings.Fields(strings.Replace(k, "!", "", 1)))
		p.cfg.Stored.Known = append(p.cfg.Stored.Known, event.Known{Key: o.Key(), UID: o.UID, ResourceVersion: o.ResourceVersion, Summary: o.Summary, Gone: strings.HasPrefix(k, "!")})
	}
	p.q = NewQueue(p.cfg)
}

func (p *player) comeFrom(origin string) {
	p.origin = map[string]Origin{
		"first":    {Kind: First},
		"resumed":  {Kind: Resumed},
		"relisted": {Kind: Relisted, From: p.q.Stats().Position, Reason: "history expired"},
		"broken":   {Kind: First, Reason: "the journal was lost"},
	}[origin]
}

func (p *player) list(words []string, tail string) error {
	p.comeFrom(words[0])
	var objects []any
	for _, s := range fields(tail) {
		o := p.object(strings.Fields(s))
		if early, ok := p.staged[o.Key()+"@"+o.ResourceVersion]; ok {
			o = early
		}
		objects = append(objects, o)
	}
	return replace(p.t, p.q, objects, words[1])
}

// replace gives a list to a queue and pops as long as the queue waits for that.
func replace(t *testing.T, q *Queue, list []any, resourceVersion string) error {
	done := make(chan error)
	go func() { done <- q.Replace(list, resourceVersion) }()
	for {
		select {
		case err := <-done:
			return err
		default:
			if q.cfg.Origin().Kind != First || !pop(t, q) {
				runtime.Gosched()
			}
		}
	}
}

// pop takes one object's deltas out of a queue, if there are any.
func pop(t *testing.T, q *Queue) bool {
	if q.Stats().Queued == 0 {
		return false
	}
	_, err := q.fifo.Pop(func(obj any, _ bool) error { return q.process(context.Background(), obj.(cache.Deltas)) })
	if err != nil {
		t.Fatal(err)
	}
	return true
}

func (p *player) stage(origin, tail string) error {
	p.comeFrom(origin)
	p.staged = map[string]*Object{}
	for _, s := range fields(tail) {
		o, err := p.q.Stage(p.object(strings.Fields(s)))
		if err != nil {
			return err
		}
		p.staged[o.Key()+"@"+o.ResourceVersion] = o
		if o.Raw == nil {
			fmt.Fprintf(&p.out, "  %s goes on without its body\n", o.Key())
		}
	}
	return nil
}

// stepping runs what waits for the queue to drain while popping.
func (p *player) stepping(f func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.q.Run(ctx) }()
	if err := f(); err != nil {
		p.t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		p.t.Fatal(err)
	}
}

func (p *player) object(words []string) *Object {
	if len(words) < 2 {
		p.t.Fatalf("object %q: want namespace/name uid@resourceVersion", words)
	}
	namespace, name, _ := strings.Cut(words[0], "/")
	o := NewObject(namespace, name)
	o.UID, o.ResourceVersion, _ = strings.Cut(words[1], "@")
	o.Raw = []byte(`{"rv":"` + o.ResourceVersion + `"}`)
	o.ObservedAt = time.Unix(0, 0).UTC()
	if len(words) > 2 {
		o.Summary, o.Names = summarize(words[2:])
	}
	return o
}

// summarize makes a summary of an object in which "spec=…", "status=…" and "labels=…" are the parts, "deleting" says what it
// does, and "manager@time" is an entry of managedFields.
func summarize(words []string) (summary, names string) {
	var parts Parts
	var entries, managers []byte
	for _, w := range words {
		sum := uint64(crc32.ChecksumIEEE([]byte(w)))
		switch name, _, _ := strings.Cut(w, "="); name {
		case "spec":
			parts.Rest = sum
		case "status":
			parts.Status = sum
		case "labels":
			parts.Metadata = sum
		case "deleting":
			parts.Deleting = true
		default:
			manager, at, _ := strings.Cut(w, "@")
			entries = AppendWriter(entries, uint64(crc32.ChecksumIEEE([]byte(manager))), uint64(crc32.ChecksumIEEE([]byte(at))), 1, 1)
			managers = AppendNames(managers, []byte(manager), []byte("Update"), nil, []byte(at))
		}
	}
	return string(AppendParts(nil, parts)) + string(entries), string(managers)
}

func (p *player) append(_ context.Context, o Observation) error {
	for _, c := range o.Changes {
		fmt.Fprintf(&p.out, "%s\n", describe(c))
	}
	for _, k := range o.Known {
		gone := ""
		if k.Gone {
			gone = " gone"
		}
		fmt.Fprintf(&p.out, "  known %s %s@%s%s\n", k.Key, k.UID, k.ResourceVersion, gone)
	}
	for _, key := range o.Forget {
		fmt.Fprintf(&p.out, "  forget %s\n", key)
	}
	if o.Snapshot != "" {
		fmt.Fprintf(&p.out, "  in snapshot %s\n", o.Snapshot)
	}
	if o.Position != "" {
		fmt.Fprintf(&p.out, "  position %s\n", o.Position)
	}
	return nil
}

func describe(c *event.Change) string {
	switch c.Type {
	case event.Gap:
		return fmt.Sprintf("gap %s to %s: %s", c.Gap.From, c.Gap.To, c.Gap.Reason)
	case event.SnapshotBegin:
		return fmt.Sprintf("snapshot.begin %s", c.Snapshot.ID)
	case event.SnapshotEnd:
		return fmt.Sprintf("snapshot.end %s at %s: %d objects, digest %s…", c.Snapshot.ID, c.Snapshot.Position, c.Snapshot.Count, c.Snapshot.Digest[:8])
	}
	s := fmt.Sprintf("%s %s/%s %s@%s (%s)", c.Type, c.Namespace, c.Name, c.UID, c.ResourceVersion, c.Delta)
	if c.Coalesced {
		s += " coalesced"
	}
	if c.FinalStateUnknown {
		s += " final state unknown"
	}
	if c.Snapshot != nil {
		s += " in " + c.Snapshot.ID
	}
	if c.Class != "" {
		s += " class " + string(c.Class)
	}
	if c.Actor != nil {
		s += " by " + c.Actor.Manager
	}
	if c.Before != nil {
		s += " before " + string(c.Before)
	}
	if c.After != nil {
		s += " after " + string(c.After)
	}
	return s
}

func fields(s string) []string {
	var out []string
	for _, f := range strings.Split(s, ",") {
		if f = strings.TrimSpace(f); f != "" {
			out = append(out, f)
		}
	}
	return out
}
