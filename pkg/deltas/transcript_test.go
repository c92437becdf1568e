package deltas

import (
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var rewrite = flag.Bool("rewrite", false, "update the expected output of the transcripts; review the diff before committing")

// TestTranscripts plays testdata/*.txt: blocks of input, and below "----" the output: the changes of an observation,
// followed by the indented data that is stored with them. The language:
//
//	open [position] [snapshot=ID] [selected] [lost=reason] : known, known ...
//	                             a tracker of a scope with this stored state; the first block of a file
//	elsewhere key uid@version ...
//	                             only some sinks received these versions of an object
//	filter [namespace]           selects one namespace from now on; without an argument, all
//	ADDED|MODIFIED|DELETED object
//	                             an event; an object is namespace/name uid@resourceVersion, optionally followed by the
//	                             words of summaryFromWords. The events of a block are one batch
//	BOOKMARK resourceVersion
//	page : object, object ...    a batch of a list
//	list newest                  starts a list; newest is the current position, which is the end of a gap
//	again                        the list failed and starts again
//	end resourceVersion          ends the list
//	lose reason                  the API server has compacted the history after the position
//	restart                      kill -9, and a new process with the stored state
//	edit pass                    the same, and the rules were edited in between
//	sync pass : object ...       objects that were read for a resync
//	vanish                       the resource is no longer served
//	leave pass                   no rule selects the resource any more
//
// No two changes after one "open" may have the same ID.
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
		out = append(out, strings.TrimRight(input, "\n")+"\n----\n"+p.playBlock(input))
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

// player is a follower with a complete journal that prints its observations.
type player struct {
	t *testing.T
	*follower
	scope  Scope
	filter func(namespace string) bool

	known map[string]event.Known
	names map[string]int  // number of snapshots and lists so far, by prefix
	ids   map[string]bool // of changes

	batch    []Event
	position string // of the batch
	listing  bool
	out      strings.Builder
}

func (p *player) playBlock(input string) string {
	p.out.Reset()
	for _, line := range strings.Split(input, "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			p.playLine(line)
		}
	}
	p.flushBatch()
	return p.out.String()
}

func (p *player) playLine(line string) {
	head, tail, _ := strings.Cut(line, " : ")
	words := strings.Fields(strings.TrimSuffix(head, " :"))
	switch words[0] {
	case "ADDED", "MODIFIED", "DELETED":
		o := p.parseObject(words[1:])
		p.batch, p.position = append(p.batch, Event{watch.EventType(words[0]), o}), o.ResourceVersion
		return
	case "BOOKMARK":
		p.position = words[1]
		return
	}
	p.flushBatch()
	p.runCommand(words, tail)
}

func (p *player) runCommand(words []string, tail string) {
	switch words[0] {
	case "open":
		p.openScope(words[1:], tail)
	case "elsewhere":
		k := p.known[words[1]]
		k.Key = words[1]
		for _, version := range words[2:] {
			uid, rv, _ := strings.Cut(version, "@")
			k.EmittedElsewhere = event.AppendEmittedVersion(k.EmittedElsewhere, event.EmittedVersion{UID: uid, ResourceVersion: rv})
		}
		p.known[k.Key] = k
		p.startProcess(p.stored)
	case "filter":
		p.filter = nil
		if len(words) > 1 {
			p.filter = func(namespace string) bool { return namespace == words[1] }
		}
		p.startProcess(p.stored)
	case "page":
		for _, o := range p.parseObjects(tail) {
			p.batch = append(p.batch, Event{watch.Added, o})
		}
		p.flushBatch()
	case "list":
		p.startList(words[1])
		p.listing = true
	case "again":
		p.restartList()
	case "end":
		p.finishList(words[1])
		p.listing = false
	case "lose":
		p.loseHistory(strings.Join(words[1:], " "))
	case "restart":
		p.startProcess(p.stored)
	case "edit":
		p.startProcess(event.StoredScope{Snapshot: p.unfinishedSnapshot(), LostReason: "the rules were edited", Pass: words[1]})
	case "sync":
		for _, o := range p.parseObjects(tail) {
			p.storeObservation(p.tracker.ObserveSynced(o, words[1], ""))
		}
	case "vanish":
		p.observeAllGone("")
	case "leave":
		p.observeAllGone(words[1])
	default:
		p.t.Fatalf("unknown line %q", words)
	}
}

// flushBatch passes the pending events to the tracker.
func (p *player) flushBatch() {
	if len(p.batch) == 0 && p.position == "" {
		return
	}
	if p.listing {
		p.position = ""
	}
	p.storeObservation(p.tracker.ObserveEvents(p.batch, p.position))
	p.batch, p.position = nil, ""
}

// unfinishedSnapshot returns the ID of a snapshot without an end.
func (p *player) unfinishedSnapshot() string {
	if p.stored.Position != "" {
		return ""
	}
	return p.stored.Snapshot
}

func (p *player) openScope(words []string, tail string) {
	p.scope = Scope{ID: "pods", Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}}
	p.known, p.ids, p.filter = map[string]event.Known{}, map[string]bool{}, nil
	var stored event.StoredScope
	options, lost, _ := strings.Cut(strings.Join(words, " "), "lost=")
	stored.LostReason = lost
	for _, w := range strings.Fields(options) {
		if id, ok := strings.CutPrefix(w, "snapshot="); ok {
			stored.Snapshot = id
		} else if w == "selected" {
			p.scope.Selected = true
		} else {
			stored.Position = w
		}
	}
	for _, o := range p.parseObjects(tail) {
		p.known[o.Key()] = o.toKnown()
	}
	p.startProcess(stored)
}

// startProcess starts a process from the stored state.
func (p *player) startProcess(stored event.StoredScope) {
	known := NewKnownSet()
	for _, k := range p.known {
		known.Add(k)
	}
	p.listing = false
	p.follower = &follower{
		t: p.t, stored: stored, append: p.recordObservation,
		tracker: NewTracker(p.scope, known, p.filter, func() time.Time { return time.Unix(0, 0).UTC() }),
		newName: p.nextName,
	}
}

// nextName returns a name for a snapshot or a list.
func (p *player) nextName(prefix string) string {
	if p.names == nil {
		p.names = map[string]int{}
	}
	p.names[prefix]++
	return fmt.Sprint(prefix, p.names[prefix])
}

func (p *player) parseObjects(tail string) []*Object {
	var objects []*Object
	for _, s := range strings.Split(tail, ",") {
		if words := strings.Fields(s); len(words) > 0 {
			objects = append(objects, p.parseObject(words))
		}
	}
	return objects
}

func (p *player) parseObject(words []string) *Object {
	if len(words) < 2 {
		p.t.Fatalf("object %q: want namespace/name uid@resourceVersion", words)
	}
	namespace, name, found := strings.Cut(words[0], "/")
	if !found {
		namespace, name = "", words[0]
	}
	o := NewObject(namespace, name)
	o.UID, o.ResourceVersion, _ = strings.Cut(words[1], "@")
	o.Raw = []byte(`{"rv":"` + o.ResourceVersion + `"}`)
	o.ObservedAt = time.Unix(0, 0).UTC()
	if len(words) > 2 {
		o.Summary, o.Names = summaryFromWords(words[2:])
	}
	return o
}

// summaryFromWords returns a summary: "spec=…", "status=…" and "labels=…" are the parts, "deleting" sets the deletion
// timestamp, and "manager@time" is an entry of managedFields.
func summaryFromWords(words []string) (summary, names string) {
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

func (p *player) recordObservation(o event.Observation) {
	storeKnown(p.known, o)
	for _, c := range o.Changes {
		if id := c.ID(); p.ids[id] {
			p.t.Errorf("a second change has the ID %s: %s", id, describeChange(c))
		} else {
			p.ids[id] = true
		}
	}
	p.printObservation(o)
}

func (p *player) printObservation(o event.Observation) {
	var lines []string
	for _, c := range o.Changes {
		lines = append(lines, describeChange(c))
	}
	if len(o.RemovedKeys) == len(o.Changes) { // deletes inferred from a list are unordered
		slices.Sort(lines)
		slices.Sort(o.RemovedKeys)
	}
	for _, k := range o.Known {
		line := fmt.Sprintf("  known %s %s@%s", k.Key, k.UID, k.ResourceVersion)
		k.EachEmittedElsewhere(func(t event.EmittedVersion) { line += " elsewhere " + t.UID + "@" + t.ResourceVersion })
		lines = append(lines, line)
	}
	for _, key := range o.RemovedKeys {
		lines = append(lines, "  remove "+key)
	}
	for _, stored := range [][2]string{{"lost", o.LostReason}, {"in snapshot", o.Snapshot}, {"position", o.Position}} {
		if stored[1] != "" {
			lines = append(lines, "  "+stored[0]+" "+stored[1])
		}
	}
	fmt.Fprintln(&p.out, strings.Join(lines, "\n"))
}

func describeChange(c *event.Change) string {
	switch c.Type {
	case event.Gap:
		return fmt.Sprintf("gap %s to %s: %s", c.Gap.From, c.Gap.To, c.Gap.Reason)
	case event.SnapshotBegin:
		return fmt.Sprintf("snapshot.begin %s", c.Snapshot.ID)
	case event.SnapshotEnd:
		s := c.Snapshot
		return fmt.Sprintf("snapshot.end %s at %s: %d objects, digest %s…", s.ID, s.Position, s.Count, s.Digest[:8])
	}
	key := c.Name
	if c.Namespace != "" {
		key = c.Namespace + "/" + c.Name
	}
	var snapshot, actor string
	if c.Snapshot != nil {
		snapshot = c.Snapshot.ID
	}
	if c.Actor != nil {
		actor = c.Actor.Manager
	}
	s := fmt.Sprintf("%s %s %s@%s (%s)", c.Type, key, c.UID, c.ResourceVersion, c.Delta)
	for _, part := range []struct {
		set  bool
		text string
	}{
		{c.Coalesced, "coalesced"}, {c.FinalStateUnknown, "final state unknown"}, {c.Left, "left"},
		{snapshot != "", "in " + snapshot}, {c.Pass != "", "pass " + c.Pass},
		{c.Class != "", "class " + string(c.Class)}, {actor != "", "by " + actor},
		{c.Before != nil, "before " + string(c.Before)}, {c.After != nil, "after " + string(c.After)},
	} {
		if part.set {
			s += " " + part.text
		}
	}
	return s
}
