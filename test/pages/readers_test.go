package pages

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// recipesEnv includes the recipes with large software.
const recipesEnv = "KUBECDC_RECIPES"

// large skips the test of a recipe that only "make recipes" runs.
func large(t *testing.T) {
	t.Helper()
	if os.Getenv(recipesEnv) == "" {
		t.Skip("fetches and runs large software, which takes minutes: set " + recipesEnv + "=1")
	}
}

// testdata returns the absolute path of a file of the tests.
func testdata(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// again has every record of topics come a second time, behind the last one.
func (w *walk) again(topics ...string) {
	w.t.Helper()
	script := testdata(w.t, "again.py")
	w.run("everything comes again", "python3 "+script+" 127.0.0.1:9092 "+strings.Join(topics, " "))
}

// versions returns the resourceVersion of each object of a namespace, by name.
func (w *walk) versions(resource, namespace string) map[string]string {
	w.t.Helper()
	out, err := w.shell(fmt.Sprintf("kubectl get %s --namespace %s --output json", resource, namespace))
	if err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, ResourceVersion string }
		}
	}
	w.must(json.Unmarshal([]byte(out), &list))
	versions := make(map[string]string)
	for _, o := range list.Items {
		versions[o.Metadata.Name] = o.Metadata.ResourceVersion
	}
	return versions
}

// awaitEqual runs a reader again and again until what is in its output equals what the cluster has. It returns the output.
func (w *walk) awaitEqual(reader string, wanted map[string]string, parse func(out string) map[string]string) string {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		began := time.Now()
		out, err := w.shell(reader)
		found := parse(out)
		if err == nil && maps.Equal(found, wanted) {
			return out
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %v: found\n%v\nthe cluster has\n%v\n%s", reader, err, found, wanted, out)
		}
		// Readers that start a virtual machine would take the processor from what they wait for.
		time.Sleep(max(50*time.Millisecond, time.Since(began)))
	}
}
