package consumer

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// schemaNode is what the tests read of a JSON Schema.
type schemaNode struct {
	Type       json.RawMessage
	Enum       []string
	Examples   []string
	Format     string
	Const      any
	Properties map[string]*schemaNode
	Items      *schemaNode
}

// nativeSchema returns the schema of the native object.
func nativeSchema(t *testing.T) *schemaNode {
	t.Helper()
	text, err := os.ReadFile("../../docs/schema/json.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema schemaNode
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return &schema
}

// sample makes values of a schema, each another one where the schema allows it.
type sample struct {
	made   int
	leaves []leaf
}

// leaf is a member with a value that contains no members of the contract.
type leaf struct{ path, name, text string }

// value returns a value of a schema, which stands at a path.
func (s *sample) value(path string, n *schemaNode) any {
	s.made++
	var v any = fmt.Sprintf("%s:%d", path, s.made)
	switch {
	case path == ".before" || path == ".after":
		v = map[string]any{"metadata": map[string]any{"name": v}}
	case len(n.Properties) > 0 && n.Items == nil:
		members := make(map[string]any)
		for name, one := range n.Properties {
			members[name] = s.value(path+"."+name, one)
		}
		return members
	case n.Items != nil:
		return []any{s.value(path, n.Items)}
	case path == ".type":
		v = "updated"
	case len(n.Enum) > 0:
		v = n.Enum[0]
	case len(n.Examples) > 0:
		v = n.Examples[0]
	case n.Const != nil:
		v = n.Const
	case n.Format == "date-time":
		v = fmt.Sprintf("2026-01-02T03:04:%02dZ", s.made%60)
	case string(n.Type) == `"integer"`:
		v = 1000 + s.made
	}
	s.leaves = append(s.leaves, leaf{path, path[strings.LastIndex(path, ".")+1:], fmt.Sprint(v)})
	return v
}

// fullRecord returns a record that has every member of the schema, and these members.
func fullRecord(t *testing.T) (record []byte, leaves []leaf) {
	t.Helper()
	var s sample
	record, err := json.Marshal(s.value("", nativeSchema(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.leaves) < 80 {
		t.Fatalf("the schema has only %d members", len(s.leaves))
	}
	return record, s.leaves
}

// checkMembers requires that each member stands in what a client shows of a record, behind its name.
func checkMembers(t *testing.T, leaves []leaf, shown string) {
	t.Helper()
	for _, l := range leaves {
		name := l.name
		switch l.path {
		case ".before", ".after":
			_, l.text, _ = strings.Cut(strings.TrimSuffix(l.text, "]]"), "name:")
			name = ""
		}
		if !regexp.MustCompile(`(?i)` + name + `"?[=:]?\[?"?` + regexp.QuoteMeta(l.text)).MatchString(shown) {
			t.Errorf("%s, %q, is not in\n%s", l.path, l.text, shown)
		}
	}
}

// TestEveryMemberOfTheSchemaIsTyped in a Record.
func TestEveryMemberOfTheSchemaIsTyped(t *testing.T) {
	text, leaves := fullRecord(t)
	record, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	checkMembers(t, leaves, string(shown))
	for field := range reflect.TypeFor[Record]().Fields() {
		if nativeSchema(t).Properties[field.Tag.Get("json")] == nil {
			t.Errorf("the schema has no %s", field.Name)
		}
	}
}

// readMembers requires that a client has every member of the schema typed.
func readMembers(t *testing.T, language string, commands clientCommands) {
	c := commands.example(map[string]string{
		"python": `
import kubecdc, typing
def show(of, at):
    if typing.get_origin(of) is list:
        of = typing.get_args(of)[0]
    if typing.get_origin(of) is typing.Union:
        of = typing.get_args(of)[1]
    if hasattr(of, "__total__"):
        for name, one in typing.get_type_hints(of).items():
            show(one, at + "." + name)
    else:
        print(at)
show(kubecdc.Record, "")`,
		"java": `public class Example {
    public static void main(String[] arguments) throws java.io.IOException {
        System.out.println(io.kubecdc.consumer.Change.parse(new String(System.in.readAllBytes(), "UTF-8")));
    }
}`,
	}[language])
	text, leaves := fullRecord(t)
	c.Stdin = strings.NewReader(string(text))
	shown, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	if language == "java" {
		checkMembers(t, leaves, string(shown))
		return
	}
	want := make(map[string]bool)
	for _, l := range leaves {
		want[l.path] = true
	}
	if typed, want := strings.Fields(string(shown)), slices.Sorted(maps.Keys(want)); !slices.Equal(slices.Sorted(slices.Values(typed)), want) {
		t.Errorf("typed are\n%v\nthe schema has\n%v", slices.Sorted(slices.Values(typed)), want)
	}
}
