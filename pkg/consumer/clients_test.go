package consumer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/hostile"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// clientHistories is how many histories a client in another language rebuilds, half of them from one partition.
const clientHistories = 600

// hostileStreams is how many streams of package hostile a client reads.
const hostileStreams = 10

// client is a package in another language, with a program that reads native objects from its input, one a line, and prints
// what exists in the end.
type client struct {
	name    string // of its directory
	code    string // pattern of its files
	prepare func(t *testing.T, dir string) clientCommands
}

// clientCommands make the processes of a client.
type clientCommands struct {
	program func() *exec.Cmd
	example func(code string) *exec.Cmd // runs the example of its page
}

var clients = []client{
	{"python", "kubecdc/*.py", preparePython},
	{"java", "src/main/java/io/kubecdc/consumer/*.java", prepareJava},
}

func preparePython(t *testing.T, dir string) clientCommands {
	require.Program(t, "python3", "install Python 3.9 or later")
	run := func(arguments ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), "python3", arguments...)
		c.Dir, c.Env = dir, append(c.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		return c
	}
	return clientCommands{
		program: func() *exec.Cmd { return run("-m", "kubecdc") },
		example: func(code string) *exec.Cmd { return run("-c", code) },
	}
}

func prepareJava(t *testing.T, dir string) clientCommands {
	require.Program(t, "javac", "install a JDK, 17 or later")
	classes := t.TempDir()
	compile := func(files ...string) {
		c := exec.CommandContext(t.Context(), "javac", append([]string{"-Xlint:all", "-Werror", "--release", "17", "-cp", classes, "-d", classes}, files...)...)
		if output, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, output)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "src/main/java/io/kubecdc/consumer/*.java"))
	if err != nil {
		t.Fatal(err)
	}
	compile(files...)
	run := func(class string) *exec.Cmd { return exec.CommandContext(t.Context(), "java", "-cp", classes, class) }
	return clientCommands{
		program: func() *exec.Cmd { return run("io.kubecdc.consumer.Main") },
		example: func(code string) *exec.Cmd {
			path := filepath.Join(t.TempDir(), "Example.java")
			if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			compile(path)
			return run("Example")
		},
	}
}

// TestClientsFollowTheRules gives each client the histories that the rules of this package are held by, what Parse and Apply
// reject, and the example of its page.
func TestClientsFollowTheRules(t *testing.T) {
	input, want := recordHistories(t)
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			dir := filepath.Join("..", "..", "clients", client.name)
			client.readCode(t, dir)
			commands := client.prepare(t, dir)
			t.Run("histories", func(t *testing.T) { rebuildHistories(t, commands.program(), input, want) })
			t.Run("hostile records", func(t *testing.T) { rebuildRecorded(t, commands) })
			t.Run("a lost record", func(t *testing.T) { findLostRecord(t, commands.program()) })
			t.Run("forged watermarks", func(t *testing.T) {
				rebuildHistories(t, commands.program(), forgedWatermarks(), map[string]string{"c watermark": "30 not made"})
			})
			t.Run("deeply nested objects", func(t *testing.T) { rebuildDeepObjects(t, commands) })
			t.Run("what an update changed", func(t *testing.T) { readChanged(t, client.name, commands) })
			t.Run("every member", func(t *testing.T) { readMembers(t, client.name, commands) })
			t.Run("no records", func(t *testing.T) { rejectValues(t, commands) })
			t.Run("example", func(t *testing.T) { runExample(t, client.name, dir, commands) })
		})
	}
}

// changedRecord has each form of a difference.
const changedRecord = `{"id":"c/u/2/updated","type":"updated","cluster":"c","resource":"pods","name":"p","uid":"u","resourceVersion":"2","after":{},"changed":[` +
	`"/spec/n",{"path":"/spec/n","from":9007199254740993,"to":null},{"path":"/c/[name=a~1b]","to":{"name":"a/b"},"index":1},` +
	`{"path":"/c/[name=x]","from":"\u0000","index":0},{"path":"","omitted":["from","to"]}]}`

// readChanged requires that a client reads what an update changed, and tells null from what is absent.
func readChanged(t *testing.T, language string, commands clientCommands) {
	c := commands.example(map[string]string{
		"python": `
import sys
from kubecdc import ABSENT, changed, encode, parse
show = lambda v: "-" if v is ABSENT else encode(v)
for d in changed(parse(sys.stdin.buffer.read())):
    print(d.path, show(d.before), show(d.after), "-" if d.index is None else d.index, *d.omitted)`,
		"java": `public class Example {
    public static void main(String[] arguments) throws java.io.IOException {
        for (var d : io.kubecdc.consumer.Change.parse(new String(System.in.readAllBytes(), "UTF-8")).changed()) {
            String omitted = d.omitted().isEmpty() ? "" : " " + String.join(" ", d.omitted());
            System.out.println(d.path() + " " + show(d.from()) + " " + show(d.to()) + " " + (d.index() < 0 ? "-" : d.index()) + omitted);
        }
    }
    static String show(String value) { return value == null ? "-" : value; }
}`,
	}[language])
	c.Stdin = strings.NewReader(changedRecord)
	got, err := c.CombinedOutput()
	if want := changedLines; err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
}

const changedLines = `/spec/n - - -
/spec/n 9007199254740993 null -
/c/[name=a~1b] - {"name":"a/b"} 1
/c/[name=x] "\u0000" - 0
 - - - from to
`

func TestWhatAnUpdateChangedIsRead(t *testing.T) {
	r, err := Parse([]byte(changedRecord))
	if err != nil {
		t.Fatal(err)
	}
	show := func(v json.RawMessage) string {
		if v == nil {
			return "-"
		}
		return string(v)
	}
	var got strings.Builder
	for _, d := range r.Changed {
		index := "-"
		if d.Index != nil {
			index = strconv.Itoa(*d.Index)
		}
		fmt.Fprintln(&got, strings.TrimRight(strings.Join([]string{d.Path, show(d.From), show(d.To), index, strings.Join(d.Omitted, " ")}, " "), " "))
	}
	if got.String() != changedLines {
		t.Errorf("got %s\nwant %s", got.String(), changedLines)
	}
}

// readCode reads the code of the client, so that a cached result of the test counts for this code only.
func (c client) readCode(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, c.code))
	if err != nil || len(files) == 0 {
		t.Fatalf("no code of the client in %s: %v", dir, err)
	}
	for _, path := range files {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
}

// recordHistories returns histories as native objects, one a line, and the bodies that exist in the end. Each history is a
// cluster of its own.
func recordHistories(t *testing.T) (input []byte, want map[string]string) {
	t.Helper()
	want = map[string]string{}
	for seed := range uint64(clientHistories) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 19)), seed%4 == 0)
		w.cluster, w.older, w.grows = "c"+strconv.FormatUint(seed, 10), seed%3 == 0, seed%6 == 1
		switch {
		case seed == 1:
			w.runLong()
		case seed%16 == 0:
			w.older = false
			w.runRestoredHistory()
		default:
			w.runHistory()
		}
		order := w.streamOrder()
		switch {
		case seed == 1:
			order = w.snapshotFirst(slices.Concat(w.partitions()...))
		case seed%2 == 1:
			order = w.partitionOrder(seed%4 > 1)
		}
		if w.collides {
			continue
		}
		table := &Table{}
		for _, i := range order {
			input = append(append(input, w.values[i]...), '\n')
			if err := table.Apply(w.stream[i]); err != nil {
				t.Fatal(err)
			}
			past := order[i%len(order)]
			input = append(append(input, replayRecord(w.values[past], w.stream[past].Type)...), '\n')
		}
		for _, newest := range table.Watermarks() {
			want[w.cluster+" watermark"] = newest.Position + " " + string(newest.Check)
		}
		for key, body := range w.selectedBodies() {
			want[w.cluster+" "+key.Namespace+"/"+key.Name] = body
		}
	}
	return input, want
}

// forgedWatermarks returns a stream with watermarks of another writer far ahead, in the epoch of the exporter and in another
// one, and dead letters, none of which keeps the newest watermark of the exporter away.
func forgedWatermarks() (input []byte) {
	mark := func(epoch string, sequence uint64, position, other string) {
		input = fmt.Appendf(input, `{"id":"%s%d","type":"watermark","cluster":"c","resource":"pods","resourceVersion":"%s",`+
			`"watermark":{"epoch":"%s","sequence":%d,"lane":0,"lanes":1}%s}`+"\n", epoch, sequence, position, epoch, sequence, other)
	}
	mark("e", 1, "10", "")
	mark("e", 1<<40, "9000000", "")
	mark("e", 2, "20", "")
	mark("f", 1, "9000000", "")
	mark("e", 3, "30", "")
	mark("e", 4, "40", `,"deadLetter":{"sink":"bus"}`)
	return input
}

func TestAForgedWatermarkDoesNotSilenceTheNext(t *testing.T) {
	var table Table
	for line := range bytes.Lines(forgedWatermarks()) {
		r, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	if all := table.Watermarks(); len(all) != 1 || all[0].Position != "30" || all[0].Epoch != "e" {
		t.Errorf("%+v", all)
	}
}

// replayRecord returns a record as a replay emits it again: of the past, wherever it stands.
func replayRecord(value []byte, kind string) []byte {
	value = bytes.Replace(value, []byte(`"id":"`), []byte(`"id":"again/`), 1)
	again := `"type":"replayed","replay":{"id":"x","of":"y","type":"` + kind + `"}`
	return bytes.Replace(value, []byte(`"type":"`+kind+`"`), []byte(again), 1)
}

func rebuildHistories(t *testing.T, program *exec.Cmd, input []byte, want map[string]string) {
	var failures bytes.Buffer
	program.Stdin, program.Stderr = bytes.NewReader(input), &failures
	output, err := program.Output()
	if err != nil || failures.Len() > 0 {
		t.Fatalf("%v: %v\n%.2000s", program.Args, err, failures.String())
	}
	found := 0
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Buffer(nil, 1<<20); lines.Scan(); found++ {
		var one struct {
			Cluster, Resource, Namespace, Name string
			Object                             json.RawMessage
			Watermark                          *struct{ Position, Check string }
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%v: %.300s", err, lines.Bytes())
		}
		key := fmt.Sprintf("%s %s/%s", one.Cluster, one.Namespace, one.Name)
		if one.Watermark != nil {
			key = one.Cluster + " watermark"
			if got := one.Watermark.Position + " " + one.Watermark.Check; got != want[key] {
				t.Fatalf("the newest watermark of %s is %s, and in Go %s", one.Cluster, got, want[key])
			}
			continue
		}
		var body bytes.Buffer
		if err := json.Compact(&body, one.Object); err != nil || body.String() != want[key] {
			t.Fatalf("%s is %.300s in the table, and %.300q in the cluster (%v)", key, one.Object, want[key], err)
		}
	}
	if found != len(want) {
		t.Errorf("the table has %d objects and watermarks, the clusters %d", found, len(want))
	}
}

// rebuildRecorded gives this package and a client the records that the views of SQL are held by, see internal/sql, and
// random ones from partitions that are read at different speeds.
func rebuildRecorded(t *testing.T, commands clientCommands) {
	input, err := os.ReadFile("testdata/hostile.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	states, err := os.ReadFile("testdata/hostile.states")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(states)), "\n")
	rebuildHostile(t, commands.program(), string(input), strings.Fields(lines[len(lines)-1])[1:])
	for seed := range uint64(hostileStreams) {
		stream := hostile.Make(seed)
		lines := stream.Lines(rand.New(rand.NewPCG(seed, 46)))
		rebuildHostile(t, commands.program(), strings.Join(lines, "\n"), stream.Now)
	}
}

// rebuildHostile requires that this package and a client end in a state.
func rebuildHostile(t *testing.T, program *exec.Cmd, input string, want []string) {
	var table Table
	for line := range strings.Lines(input) {
		record, err := Parse([]byte(line))
		if err == nil {
			err = table.Apply(record)
		}
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	found := make(map[string]string) // by client
	for resource := range table.resources {
		for _, o := range table.Objects(resource) {
			found["go"] += hostile.NameRow(resource.Cluster, resource.Resource, o.Namespace, o.Name, o.ResourceVersion) + "\n"
		}
	}
	program.Stdin = strings.NewReader(input)
	output, err := program.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(output) {
		var one struct {
			Cluster, Resource, Namespace, Name string
			Object                             struct {
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatal(err)
		}
		found["client"] += hostile.NameRow(one.Cluster, one.Resource, one.Namespace, one.Name, one.Object.Metadata.ResourceVersion) + "\n"
	}
	for who, text := range found {
		if has := strings.Split(strings.TrimSpace(text), "\n"); !slices.Equal(slices.Sorted(slices.Values(has)), want) {
			t.Errorf("%s has %q, want %q", who, has, want)
		}
	}
	if len(found) != 2 {
		t.Errorf("only %v has objects", found)
	}
}

// findLostRecord gives a client a stream without one of its records: the checks of the watermarks that follow must find
// that.
func findLostRecord(t *testing.T, program *exec.Cmd) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 21)), false)
	w.lanes = 1
	w.runSteadily()
	lost, after := -1, 0
	for i, r := range w.stream {
		if v, known := w.known[r.Name]; known && r.ResourceVersion == v.resourceVersion && r.Type != "sync" {
			lost, after = i, 0
		}
		if r.Watermark != nil {
			after++
		}
	}
	var input []byte
	for i, r := range w.stream {
		if i != lost && r.Type != "sync" {
			input = append(append(input, w.values[i]...), '\n')
		}
	}
	var failures bytes.Buffer
	program.Stdin, program.Stderr = bytes.NewReader(input), &failures
	output, err := program.Output()
	if want := strconv.Itoa(after) + " watermarks of things differ"; err != nil || !strings.Contains(failures.String(), want) {
		t.Errorf("%v: %s%s, want %q", err, output, failures.String(), want)
	}
	if !strings.Contains(strings.ReplaceAll(string(output), " ", ""), `"check":"different"`) {
		t.Errorf("no difference in %s", output)
	}
}

// rebuildDeepObjects gives a client objects as deep as API servers accept them, on which a decoder that recurses fails.
func rebuildDeepObjects(t *testing.T, commands clientCommands) {
	var input []byte
	want := map[string]string{}
	for _, depth := range []int{99, 500, 999, 1000, 5000, 9990} {
		for i, nest := range [][2]string{{"[", "]"}, {`{"a":`, "}"}, {`[null, `, ", {} ]"}, {`{"e":[],"b":`, `,"c":false}`}} {
			body := `{"spec":` + strings.Repeat(nest[0], depth-1) + `"x]}\\"` + strings.Repeat(nest[1], depth-1) + `,"z":1.5}`
			name := fmt.Sprint(depth, "-", i)
			input = fmt.Appendf(input, `{"id":%q,"type":"added","cluster":"c","group":"","resource":"things","namespace":"ns","name":%q,"uid":"u","resourceVersion":"5","after":%s}`+"\n", name, name, body)
			want["c ns/"+name] = strings.ReplaceAll(body, " ", "")
		}
	}
	rebuildHistories(t, commands.program(), input, want)
	for _, value := range []string{`{"id":"x","type":"added","after":{"a":` + strings.Repeat("[", 5000), `{"id":"x","type":"added","after":{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 4999) + "}}}"} {
		c := commands.program()
		c.Stdin = strings.NewReader(value + "\n")
		if output, err := c.CombinedOutput(); err == nil || !strings.Contains(string(output), "InvalidRecord") {
			t.Errorf("%.60s…: %v: %.300s", value, err, output)
		}
	}
}

func rejectValues(t *testing.T, commands clientCommands) {
	for _, value := range []string{
		"x", "null", "[]", "{", `{"id":"x","type":"y"`, `{"type":"added"}`, `{"id":1,"type":"added"}`, `{"id":"x","type":"gap"}`,
		`{"id":"x","type":"snapshot.end"}`, `{"id":"x","type":"watermark"}`, `{"id":"x","type":"added"}`, `{"id":"x","type":"added","after":1}`,
	} {
		c := commands.program()
		c.Stdin = strings.NewReader(value + "\n")
		if output, err := c.CombinedOutput(); err == nil || !strings.Contains(string(output), "InvalidRecord") {
			t.Errorf("%s: %v: %s", value, err, output)
		}
	}
}

func runExample(t *testing.T, language, dir string, commands clientCommands) {
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```"+language+" tested by TestClientsFollowTheRules\n")
	example, _, _ = strings.Cut(example, "```")
	c := commands.example(example)
	c.Stdin = strings.NewReader(`{"id":"1","type":"added","cluster":"prod","group":"","resource":"pods","namespace":"ns","name":"a","uid":"u",` +
		`"resourceVersion":"5","after":{"deep":[{"a":"\"}]"}]}}` + "\n")
	if output, err := c.CombinedOutput(); err != nil || string(output) != "ns a 5\n" {
		t.Errorf("the example printed %s (%v)", output, err)
	}
}
