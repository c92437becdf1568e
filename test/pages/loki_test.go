package pages

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/loki"
)

const lokiPage = "docs/recipes/loki.md"

// TestTheLokiRecipeRuns has a collector take changes to Loki by the configuration of the page, while objects come, change
// and go, the collector stops while Loki is away, Loki refuses a line, and all records come a second time, and compares the
// lines with the cluster.
func TestTheLokiRecipeRuns(t *testing.T) {
	large(t)
	s := running(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	s.installCollector(ctx, t)
	server, err := loki.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := newWalk(t, s, []command{exporterRuns, {begins: "otelcol-contrib", ready: `Everything is ready`}},
		"http://127.0.0.1:3100", server.URL())
	w.run("a build", makeBuild)
	w.run("what is there before", `
		kubectl create namespace loki
		kubectl create configmap kept --namespace loki --from-literal colour=red
		kubectl create configmap going --namespace loki --from-literal colour=red`)
	w.follow(lokiPage)
	queries := listings(t, w.dir, lokiPage, "sh tested by TestTheLokiRecipeRuns")
	if len(queries) != 1 {
		t.Fatalf("%s has %d queries", lokiPage, len(queries))
	}
	w.await(queries[0], `"type":"added"`)
	w.await(queries[0], `"type":"deleted"`)
	collector := w.started[len(w.started)-1]
	w.must(server.Stop())
	w.run("objects come, change and go while Loki is away", `
		kubectl create configmap new --namespace loki --from-literal colour=blue
		kubectl patch configmap kept --namespace loki --patch '{"data":{"colour":"green"}}'
		kubectl delete configmap going --namespace loki`)
	collector.prints = []string{"Will retry the request"}
	w.awaitPrints()
	w.must(collector.process.Stop())
	w.must(server.Restart(ctx))
	collector = w.start(collector.block)
	query := url.QueryEscape(`{service_name="kubecdc", k8s_cluster_name="dev", k8s_namespace_name="loki"} | resource="configmaps"`)
	look := "curl --silent --fail-with-body '" + server.URL() + "/loki/api/v1/query_range?limit=1000&query=" + query + "'"
	w.awaitEqual(look, w.versions("configmaps", "loki"), newestLines)
	w.run("a line that Loki refuses", `
		kubectl create configmap long
		kubectl annotate configmap long $(for i in a b; do echo $i=$(head --bytes 130900 /dev/zero | tr '\0' x); done)
		kubectl delete configmap long`)
	collector.prints = []string{"(?i)max entry size"}
	w.awaitPrints()
	w.again("k8s.loki")
	w.run("a last change of each", `
		kubectl patch configmap kept --namespace loki --patch '{"data":{"colour":"black"}}'
		kubectl patch configmap new --namespace loki --patch '{"data":{"colour":"white"}}'`)
	w.awaitEqual(look, w.versions("configmaps", "loki"), newestLines)
	w.run("tidying up", "kubectl delete namespace loki --wait=false")
}

// installCollector adds otelcol-contrib to the tools. Its own metrics stay off, which would take a port that is always the
// same.
func (s *servers) installCollector(ctx context.Context, t *testing.T) {
	t.Helper()
	program, err := build.OTelCollector(ctx)
	if err != nil {
		t.Fatal(err)
	}
	quiet := filepath.Join(s.dir, "otelcol.yaml")
	for path, text := range map[string]string{
		quiet: "service: {telemetry: {metrics: {level: none}}}\n",
		filepath.Join(s.dir, "tools", "otelcol-contrib"): "#!/bin/sh\nexec '" + program + "' --config '" + quiet + "' \"$@\"\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// lokiAnswer is what a query of lines finds: in each stream, what came with a line and when it was, and the line.
type lokiAnswer struct {
	Data struct {
		Result []struct {
			Stream map[string]string
			Values [][2]string
		}
	}
}

// newestLines reads the version of the newest line of each object that was not deleted, by name. A line that is there twice,
// or has not the time and the metadata of its change, is in the result too.
func newestLines(out string) map[string]string {
	var answer lokiAnswer
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return map[string]string{"unreadable": out}
	}
	found, newest, seen := make(map[string]string), make(map[string]time.Time), make(map[string]bool)
	wrong := make(map[string]string)
	for _, stream := range answer.Data.Result {
		for _, value := range stream.Values {
			var change struct {
				ID, Type, Resource, Name, UID, ResourceVersion string
				ObservedAt                                     time.Time
			}
			if err := json.Unmarshal([]byte(value[1]), &change); err != nil {
				wrong["unreadable"] = value[1]
				continue
			}
			with := stream.Stream
			asIs := with["type"] == change.Type && with["resource"] == change.Resource && with["name"] == change.Name &&
				with["uid"] == change.UID && value[0] == strconv.FormatInt(change.ObservedAt.UnixNano(), 10)
			if !asIs || seen[change.ID] {
				wrong[change.ID] = value[0]
			}
			seen[change.ID] = true
			if change.Name == "" || change.ObservedAt.Before(newest[change.Name]) {
				continue
			}
			newest[change.Name], found[change.Name] = change.ObservedAt, change.ResourceVersion
			if change.Type == "deleted" {
				delete(found, change.Name)
			}
		}
	}
	maps.Copy(found, wrong)
	return found
}
