package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kubecdc/kubecdc"

// mayImport lists, for each package of the product, which of our packages it may import. A package that is not listed
// fails the test: its place in the picture has to be decided first.
var mayImport = map[string][]string{
	"pkg/event":            {"pkg/form"},
	"pkg/deltas":           {"pkg/resourceversion", "pkg/event", "pkg/form"},
	"pkg/rawjson":          nil,
	"pkg/source":           {"pkg/ratelimit", "pkg/resourceversion", "pkg/event", "pkg/deltas", "pkg/source/apiserver", "pkg/source/decode", "pkg/source/selection", "pkg/condition"},
	"pkg/source/apiserver": {"pkg/condition", "pkg/event", "pkg/deltas", "pkg/source/decode", "pkg/source/selection"},
	"pkg/source/selection": {"pkg/event", "pkg/nearest"},
	"pkg/source/decode":    {"pkg/event", "pkg/deltas", "pkg/rawjson"},
	"pkg/source/involved":  {"pkg/ratelimit", "pkg/deltas", "pkg/event", "pkg/rawjson", "pkg/resourceversion", "pkg/source", "pkg/source/apiserver", "pkg/source/decode", "pkg/source/selection"},
	"pkg/shape":            {"pkg/event", "pkg/deltas", "pkg/nearest", "pkg/rawjson", "pkg/shape/path", "pkg/shape/filter", "pkg/shape/diff"},
	"pkg/shape/path":       {},
	"pkg/shape/filter":     {"pkg/event", "pkg/rawjson"},
	"pkg/shape/diff":       {"pkg/rawjson", "pkg/shape/path"},
	"pkg/format":           {"pkg/event", "pkg/rawjson"},
	"pkg/credentials":      nil,
	"pkg/ratelimit":        nil,
	"pkg/form":             nil,
	"pkg/consumer":         {"pkg/rawjson", "pkg/resourceversion"},
	"pkg/history":          {"pkg/credentials"},
	"pkg/resourceversion":  nil,
	"pkg/nearest":          nil,

	"pkg/sinks":                  {"pkg/condition", "pkg/credentials", "pkg/event", "pkg/format"},
	"pkg/sinks/stdout":           {"pkg/event", "pkg/format", "pkg/sinks", "pkg/condition"},
	"pkg/sinks/history":          {"pkg/credentials", "pkg/ratelimit", "pkg/condition", "pkg/event", "pkg/history", "pkg/rawjson", "pkg/sinks"},
	"pkg/sinks/kafka":            {"pkg/credentials", "pkg/resourceversion", "pkg/event", "pkg/form", "pkg/format", "pkg/ratelimit", "pkg/sinks", "pkg/condition", "pkg/sinks/kafka/cluster", "pkg/sinks/kafka/auth", "pkg/sinks/kafka/connection", "pkg/sinks/kafka/protocol", "pkg/sinks/kafka/record", "pkg/sinks/kafka/state"},
	"pkg/sinks/kafka/auth":       {"pkg/credentials"},
	"pkg/sinks/kafka/cluster":    {"pkg/condition", "pkg/ratelimit", "pkg/sinks", "pkg/sinks/kafka/auth", "pkg/sinks/kafka/connection", "pkg/sinks/kafka/protocol"},
	"pkg/sinks/kafka/state":      {"pkg/condition", "pkg/format", "pkg/ratelimit", "pkg/sinks", "pkg/sinks/kafka/cluster", "pkg/sinks/kafka/connection", "pkg/sinks/kafka/protocol", "pkg/sinks/kafka/record"},
	"pkg/sinks/kafka/connection": {"pkg/condition", "pkg/sinks", "pkg/sinks/kafka/auth", "pkg/sinks/kafka/protocol"},
	"pkg/sinks/kafka/follow":     {"pkg/sinks/kafka/cluster", "pkg/sinks/kafka/protocol"},
	"pkg/sinks/kafka/protocol":   nil,
	"pkg/sinks/kafka/record":     {"pkg/event", "pkg/format", "pkg/sinks"},
	"pkg/sinks/nats":             {"pkg/credentials", "pkg/condition", "pkg/event", "pkg/form", "pkg/format", "pkg/sinks", "pkg/sinks/nats/connection", "pkg/sinks/nats/state", "pkg/sinks/nats/stream"},
	"pkg/sinks/nats/connection":  {"pkg/condition", "pkg/sinks"},
	"pkg/sinks/nats/state":       {"pkg/condition", "pkg/sinks", "pkg/sinks/nats/connection", "pkg/sinks/nats/stream"},
	"pkg/sinks/nats/stream":      {"pkg/condition", "pkg/sinks", "pkg/sinks/nats/connection"},
	"pkg/sinks/webhook":          {"pkg/credentials", "pkg/event", "pkg/format", "pkg/sinks", "pkg/condition"},

	"pkg/condition":                    nil,
	"internal/attribution/audit":       {"internal/port", "pkg/rawjson", "pkg/ratelimit", "pkg/condition"},
	"internal/attribution/audit/topic": {"internal/attribution/audit", "pkg/condition", "pkg/ratelimit", "pkg/sinks/kafka/auth", "pkg/sinks/kafka/cluster", "pkg/sinks/kafka/follow"},
	"internal/attribution":             {"pkg/ratelimit", "pkg/resourceversion", "pkg/event", "pkg/rawjson", "internal/attribution/audit", "internal/attribution/stamp", "pkg/condition"},
	"internal/attribution/stamp":       {"pkg/condition", "pkg/event", "pkg/ratelimit", "pkg/resourceversion"},
	"internal/delivery":                {"pkg/event", "pkg/sinks", "pkg/ratelimit", "pkg/condition"},
	"internal/config":                  {"pkg/credentials", "internal/attribution/audit", "internal/attribution/audit/topic", "internal/signals", "pkg/event", "pkg/format", "pkg/nearest", "pkg/shape", "pkg/shape/filter", "pkg/shape/path", "pkg/source/selection", "pkg/sinks", "pkg/sinks/history", "pkg/sinks/kafka", "pkg/sinks/nats", "pkg/sinks/stdout", "pkg/sinks/webhook"},
	"internal/admin":                   {"internal/port", "pkg/condition", "pkg/event", "pkg/shape", "pkg/source", "internal/attribution", "internal/delivery", "internal/journal"},

	"internal/state":         {"pkg/ratelimit", "pkg/resourceversion", "pkg/event", "pkg/form", "pkg/sinks", "pkg/condition", "internal/journal", "internal/journal/codec"},
	"internal/journal":       {"pkg/ratelimit", "pkg/resourceversion", "pkg/event", "pkg/form", "pkg/condition", "internal/journal/codec", "internal/journal/disk"},
	"internal/journal/codec": {"pkg/event", "pkg/form"},
	"internal/journal/disk":  nil,

	"internal/election": {"pkg/ratelimit", "pkg/condition"},

	"internal/exit":            nil,
	"internal/screen/terminal": nil,
	"internal/signals":         {"pkg/credentials", "pkg/condition", "pkg/nearest"},
	"internal/telemetry":       {"pkg/condition"},
	"internal/port":            {"pkg/condition"},
	"internal/app":             {"*"},
	"internal/verify":          {"pkg/ratelimit", "pkg/consumer", "pkg/deltas", "pkg/event", "pkg/format", "pkg/resourceversion", "pkg/shape/diff", "pkg/sinks", "pkg/source", "pkg/source/apiserver", "pkg/source/involved", "pkg/source/selection"},
	"internal/sql":             {"internal/exit"},
	"internal/inspect":         {"pkg/condition", "pkg/source", "internal/verify", "pkg/event", "pkg/format", "pkg/shape", "pkg/ratelimit", "pkg/sinks", "pkg/sinks/kafka", "pkg/sinks/nats", "pkg/deltas", "pkg/source/apiserver", "pkg/source/selection", "internal/admin", "internal/app", "internal/attribution/audit", "internal/config", "internal/exit", "internal/journal", "internal/signals", "internal/attribution/stamp", "internal/state"},
	"internal/history":         {"internal/exit", "internal/screen/field", "pkg/event", "pkg/history", "pkg/nearest", "pkg/resourceversion", "pkg/shape/diff"},
	"internal/history/index":   {"pkg/condition", "pkg/consumer", "pkg/event", "pkg/format", "pkg/history", "pkg/ratelimit", "pkg/rawjson", "pkg/resourceversion", "pkg/shape/diff", "pkg/sinks", "pkg/sinks/history"},
	"internal/history/serve":   {"pkg/ratelimit", "internal/exit", "internal/history", "internal/port", "pkg/event", "pkg/history", "pkg/rawjson", "pkg/resourceversion"},
	"internal/screen/field":    {"internal/screen/terminal"},
	"internal/screen/tap":      {"internal/screen/field", "pkg/event", "pkg/format", "pkg/shape", "pkg/shape/diff", "pkg/shape/filter", "pkg/source", "pkg/source/apiserver", "pkg/source/selection", "internal/exit", "internal/screen/terminal"},
	"internal/screen/top":      {"pkg/condition", "internal/admin", "internal/exit"},

	"cmd/exporter": {"pkg/event", "pkg/sinks/history", "pkg/shape", "pkg/source/selection", "internal/app", "internal/config", "internal/exit", "internal/history", "internal/history/index", "internal/history/serve", "internal/inspect", "internal/signals", "internal/sql", "internal/screen/tap", "internal/screen/terminal", "internal/screen/top"},
}

// onlyFrom lists the packages that may import a heavy library, so that no other depends on it by accident.
var onlyFrom = map[string][]string{
	"k8s.io/client-go/util/workqueue": {"internal/delivery"},
	"k8s.io/client-go":                {"pkg/source/apiserver", "pkg/deltas", "internal/delivery", "internal/config", "internal/app", "internal/election"},
	"k8s.io/client-go/util/jsonpath":  {"internal/history/serve"},
	"k8s.io/client-go/discovery":      nil, // it brings in all types of Kubernetes, a third of the binary
	"k8s.io/client-go/kubernetes":     nil, // so does this
	"k8s.io/apimachinery":             {"pkg/source", "pkg/source/apiserver", "pkg/source/decode", "pkg/source/involved", "pkg/source/selection", "pkg/deltas", "internal/config", "internal/history/serve", "internal/inspect", "internal/election"},
	"github.com/segmentio/kafka-go":   {"pkg/sinks/kafka", "pkg/sinks/kafka/auth", "pkg/sinks/kafka/cluster", "pkg/sinks/kafka/state", "pkg/sinks/kafka/connection", "pkg/sinks/kafka/protocol", "pkg/sinks/kafka/record", "pkg/sinks/kafka/follow"},
	"github.com/twmb/franz-go":        {"pkg/sinks/kafka", "pkg/sinks/kafka/auth", "pkg/sinks/kafka/cluster", "pkg/sinks/kafka/connection", "pkg/sinks/kafka/protocol"}, // SASL, schema registries, and the types of requests that kafka-go has none for
	"github.com/twmb/avro":            {"pkg/format"},
	"github.com/nats-io/nats.go":      {"pkg/sinks/nats", "pkg/sinks/nats/connection", "pkg/sinks/nats/state", "pkg/sinks/nats/stream"},
	"github.com/cockroachdb/pebble":   {"internal/journal", "internal/journal/disk"},
	"github.com/minio/minio-go":       {"pkg/history", "pkg/sinks/kafka/auth"},
	"github.com/parquet-go":           {"pkg/history"},
	"github.com/google/cel-go":        {"pkg/shape/filter"},
	"github.com/prometheus":           {"internal/admin", "internal/telemetry"},
	"go.opentelemetry.io":             {"internal/telemetry"},

	"k8s.io/client-go/tools/leaderelection": nil, // it brings in client-go/kubernetes
}

// pure packages neither look at the clock nor at the world.
var pure = map[string][]string{
	"pkg/event":           {"os", "net", "log", "log/slog", "io"},
	"pkg/resourceversion": {"os", "net", "log", "log/slog", "io", "time", "math/rand", "math/rand/v2"},
	"pkg/rawjson":         {"os", "net", "log", "log/slog", "io", "time", "math/rand", "math/rand/v2"},
	"pkg/shape":           {"os", "net", "log", "log/slog", "io", "time", "math/rand", "math/rand/v2"},
	"pkg/shape/path":      {"os", "net", "log", "log/slog", "io", "time", "math/rand", "math/rand/v2"},
	"pkg/shape/filter":    {"os", "net", "log", "log/slog", "io", "time", "math/rand", "math/rand/v2"},
	"pkg/shape/diff":      {"os", "net", "log", "log/slog", "io", "time", "math/rand", "math/rand/v2"},
	"pkg/deltas":          {"pkg/resourceversion", "os", "net", "log", "log/slog", "io", "math/rand", "math/rand/v2"},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func product(t *testing.T) map[string]goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/pkg/...", module+"/internal/...", module+"/cmd/...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	packages := map[string]goPackage{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[strings.TrimPrefix(p.ImportPath, module+"/")] = p
	}
}

func TestPackagesImportOnlyInTheDrawnDirections(t *testing.T) {
	packages := product(t)
	for name, p := range packages {
		allowed, listed := mayImport[name]
		if !listed {
			t.Errorf("%s has no place in the picture: add it to mayImport and to internal/PACKAGES.md", name)
			continue
		}
		for _, i := range p.Imports {
			ours, ok := strings.CutPrefix(i, module+"/")
			if ok && !slices.Contains(allowed, ours) && !slices.Contains(allowed, "*") {
				t.Errorf("%s must not import %s", name, ours)
			}
		}
	}
	for name := range mayImport {
		if _, ok := packages[name]; !ok {
			t.Errorf("%s is in the picture but does not exist", name)
		}
	}
}

func TestHeavyLibrariesStayWhereTheyBelong(t *testing.T) {
	for name, p := range product(t) {
		for _, i := range p.Imports {
			if library, users := owner(i); library != "" && !slices.Contains(users, name) {
				t.Errorf("%s must not import %s: %s belongs to %v", name, i, library, users)
			}
		}
	}
}

// owner finds the longest listed library that the import belongs to.
func owner(path string) (library string, users []string) {
	for lib, from := range onlyFrom {
		if (path == lib || strings.HasPrefix(path, lib+"/")) && len(lib) > len(library) {
			library, users = lib, from
		}
	}
	return library, users
}

func TestPurePackagesDoNotTouchTheWorld(t *testing.T) {
	packages := product(t)
	for name, forbidden := range pure {
		for _, i := range packages[name].Imports {
			if slices.Contains(forbidden, i) {
				t.Errorf("%s must stay pure but imports %s", name, i)
			}
		}
	}
}

// TestPkgIsALibrary that imports nothing of internal: others may build on it.
func TestPkgIsALibrary(t *testing.T) {
	for name, p := range product(t) {
		for _, i := range p.Imports {
			if strings.HasPrefix(name, "pkg/") && strings.HasPrefix(i, module+"/internal/") {
				t.Errorf("%s must not import %s", name, i)
			}
		}
	}
}
