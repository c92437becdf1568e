package tap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func updated(before, after string) *event.Change {
	return &event.Change{
		Type: event.Updated, Class: event.ClassSpec, Resource: event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Namespace: "shop", Name: "web", ObservedAt: time.Date(2026, 11, 21, 10, 0, 0, 0, time.Local),
		Before: []byte(before), After: []byte(after), Actor: &event.Actor{Manager: "kubectl-edit"},
	}
}

// shows returns what a printer without color writes of a change.
func shows(t *testing.T, format string, c *event.Change) string {
	t.Helper()
	var out bytes.Buffer
	if err := NewPrinter(&out, format, false, false).formatChange(c); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// long is longer than what is shown of a value.
var long = strings.Repeat("abcdefghij", 20)

func TestAnUpdateIsShownFieldByField(t *testing.T) {
	const header = "10:00:00.000 ~ deployments.apps shop/web  spec, by kubectl-edit\n"
	for _, c := range []struct{ name, before, after, want string }{
		{
			"members change, come and go",
			`{"metadata":{"resourceVersion":"1","generation":1,"labels":{"a":"1"}},"spec":{"replicas":2,"paused":true},"status":{"x":null}}`,
			`{"metadata":{"resourceVersion":"2","generation":2,"labels":{"a":"1","app.io/b":""}},"spec":{"replicas":3},"status":{"x":1}}`,
			"    spec.replicas              2 → 3\n" +
				"    spec.paused                - true\n" +
				"    metadata.labels[app.io/b]  + \"\"\n" +
				"    status.x                   null → 1\n",
		},
		{
			"elements with names are compared by name",
			`{"spec":{"containers":[{"name":"web","image":"a:1"},{"name":"log","image":"l:1"}],"args":["x","y"]}}`,
			`{"spec":{"containers":[{"name":"log","image":"l:2"},{"name":"new"}],"args":["x","z","w"]}}`,
			"    spec.containers[web]       - {\"name\":\"web\",\"image\":\"a:1\"}\n" +
				"    spec.containers[log].image  l:1 → l:2\n" +
				"    spec.containers[new]       + {\"name\":\"new\"}\n" +
				"    spec.args[1]               y → z\n" +
				"    spec.args[2]               + w\n",
		},
		{
			"texts are compared line by line",
			`{"data":{"conf":"a\nb\nc"}}`, `{"data":{"conf":"a\nB\nc"}}`,
			"    data.conf\n      - b\n      + B\n",
		},
		{
			"lines between those that changed are not marked", `{"data":{"conf":"a\nb\nc\nd\ne"}}`, `{"data":{"conf":"a\nB\nc\nD\ne"}}`,
			"    data.conf\n      - b\n      - d\n      + B\n      + D\n",
		},
		{
			"long values are shown where they differ", `{"a":"` + long + `1","b":{"c":["` + long + `",1]}}`, `{"a":"` + long + `2","b":{"c":["` + long + `",2]}}`,
			"    a         …" + long[len(long)-keptStart:] + "1 → …" + long[len(long)-keptStart:] + "2\n    b.c[1]    1 → 2\n",
		},
		{
			"long lines are shown where they differ", `{"a":"x\n` + long + `1"}`, `{"a":"x\n` + long + `2"}`,
			"    a\n      - …" + long[len(long)-keptStart:] + "1\n      + …" + long[len(long)-keptStart:] + "2\n",
		},
		{
			"elements that only change places are shown", `{"spec":{"env":[{"name":"a"},{"name":"b","value":1}]}}`, `{"spec":{"env":[{"name":"b","value":2},{"name":"a"}]}}`,
			"    spec.env  [{\"name\":\"a\"},{\"name\":\"b\",\"value\":1}] → [{\"name\":\"b\",\"value\":2},{\"name\":\"a\"}]\n",
		},
		{
			"a member whose name is a number is shown as a changed path is", `{"data":{"0":"a","18446744073709551616":"a"}}`, `{"data":{"0":"b","18446744073709551616":"b"}}`,
			"    data[0]  a → b\n    data[18446744073709551616]  a → b\n",
		},
		{
			"a terminal is not steered", `{"data":{"a":"1"}}`, `{"data":{"a":"\u001b]0;evil\u0007"}}`,
			"    data.a  1 → \\x1b]0;evil\\a\n",
		},
		{
			"nothing but what is hidden", `{"metadata":{"resourceVersion":"1"},"data":{"p":"***"}}`, `{"metadata":{"resourceVersion":"2"},"data":{"p":"***"}}`,
			"    nothing that is shown: a masked value, or bookkeeping\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := shows(t, Diff, updated(c.before, c.after))
			if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(header+c.want), " ") {
				t.Errorf("shown\n%swant\n%s", got, header+c.want)
			}
		})
	}
}

// TestDeepDifferencesAreShownAtABoundedDepth because each level repeats the path, which an attacker could make expensive.
func TestDeepDifferencesAreShownAtABoundedDepth(t *testing.T) {
	for _, nest := range [][2]string{{`{"` + long + `":`, "}"}, {"[", "]"}, {`[{"name":"` + long + `","v":`, "}]"}} {
		object := func(value string) string {
			return `{"spec":` + strings.Repeat(nest[0], 4000) + value + strings.Repeat(nest[1], 4000) + "}"
		}
		got := shows(t, Diff, updated(object("1"), object("2")))
		if len(got) > 64<<10 || !strings.HasSuffix(strings.TrimRight(got, "}]…\n"), "2") || !strings.Contains(got, " → ") {
			t.Errorf("%d bytes are shown: %.100s … %s", len(got), got, got[max(0, len(got)-300):])
		}
	}
}

// TestTextCannotSteerATerminal, also of names, in the formats for programs either, which read the same text all the same.
func TestTextCannotSteerATerminal(t *testing.T) {
	const text = "C0 \x1b[2J, C1 \u009b2J, bidi \u202e\u2066, next line \u0085\u2028, hidden \u200b\ufeff\U000e0001, plain é 世 😀"
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	c := updated(`{}`, `{"text":`+string(quoted)+`}`)
	c.Name, c.Actor.Manager, c.Resource.Resource, c.Type = "x"+text, "m"+text, "r"+text, event.Type("t"+text)
	for _, format := range Formats {
		if got := shows(t, format, c); strings.ContainsAny(got, "\x1b\u009b\u202e\u2066\u0085\u2028\u200b\ufeff\U000e0001") {
			t.Errorf("%s lets controls through: %q", format, got)
		}
	}
	var read struct {
		After struct {
			Text string `json:"text" yaml:"text"`
		} `json:"after" yaml:"after"`
	}
	if err := json.Unmarshal([]byte(shows(t, JSON, c)), &read); err != nil || read.After.Text != text {
		t.Errorf("read from JSON: %q (%v)", read.After.Text, err)
	}
	read.After.Text = ""
	if err := yaml.Unmarshal([]byte(shows(t, YAML, c)), &read); err != nil || read.After.Text != text {
		t.Errorf("read from YAML: %q (%v)", read.After.Text, err)
	}
}

func TestColorsEndWithTheirLine(t *testing.T) {
	var out bytes.Buffer
	p := NewPrinter(&out, Diff, true, false)
	if err := p.formatChange(updated(`{"a":1}`, `{"a":2,"b":"x\ny"}`)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if strings.Count(line, "\x1b[") != 2*strings.Count(line, string(reset)) {
			t.Errorf("a style is not taken back: %q", line)
		}
	}
}

func TestYAMLKeepsTheOrderOfMembers(t *testing.T) {
	got := shows(t, YAML, updated(`{"b":"1","a":"true"}`, `{"b":1}`))
	if !strings.HasPrefix(got, "---\nid: ") || !strings.Contains(got, "before:\n  b: \"1\"\n  a: \"true\"\n") {
		t.Errorf("written as\n%s", got)
	}
}

// TestATerminalThatTakesNothingDoesNotHoldUpTheEnd writes to a pipe without a reader.
func TestATerminalThatTakesNothingDoesNotHoldUpTheEnd(t *testing.T) {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan *event.Change, 1), make(chan error, 1)
	changes <- updated(`{}`, `{}`)
	done := make(chan error, 1)
	go func() { done <- NewPrinter(w, Diff, false, false).printChanges(ctx, changes, ended) }()
	for len(changes) > 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.Close() // so that the writer ends too
}

func TestTheEndOfTheSourceIsTheEnd(t *testing.T) {
	ended := make(chan error, 1)
	ended <- io.ErrUnexpectedEOF
	if err := NewPrinter(io.Discard, Diff, false, false).printChanges(t.Context(), nil, ended); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ended with %v", err)
	}
}
