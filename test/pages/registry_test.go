package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestTheRegistryRecipeIsReadByOthers: a real registry takes the schemas, and Confluent's client for Python reads keys and
// values by them, with what stands in the rows that have their schema with them.
func TestTheRegistryRecipeIsReadByOthers(t *testing.T) {
	large(t)
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	registry := startRegistry(ctx, t)
	interpreter, err := build.RegistryClients(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for encoding, f := range map[string]format.Format{"avro": format.DebeziumAvro, "json": format.DebeziumJSONSchema} {
		t.Run(encoding, func(t *testing.T) {
			topic, changes := "rows."+encoding, hostileRows()
			records := publishRows(t, topic, f, kafka.Registry{URL: registry, Encoding: encoding}, changes)
			var in, complaints bytes.Buffer
			for _, r := range records {
				fmt.Fprintf(&in, "%x %x\n", r.Key, r.Value)
			}
			command := exec.CommandContext(t.Context(), interpreter, testdata(t, "typed.py"), registry, encoding, topic)
			command.Stdin, command.Stderr = &in, &complaints
			out, err := command.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, complaints.String())
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(lines) != len(changes) {
				t.Fatalf("%d records are read, want %d:\n%s", len(lines), len(changes), out)
			}
			for i, c := range changes {
				var read [2]map[string]any
				if err := json.Unmarshal([]byte(lines[i]), &read); err != nil {
					t.Fatalf("%v: %s", err, lines[i])
				}
				want := [2]map[string]any{payloadOf(t, format.DebeziumInline.AppendKey(nil, c)), payloadOf(t, format.DebeziumInline.AppendValue(nil, c))}
				for part := range want {
					if dropNulls(want[part]); !reflect.DeepEqual(dropNulls(read[part]), want[part]) {
						t.Errorf("%s is read as\n%v, want\n%v", c.ID(), read[part], want[part])
					}
				}
			}
		})
	}
}

// startRegistry starts a registry and returns the address of its API.
func startRegistry(ctx context.Context, t *testing.T) (url string) {
	t.Helper()
	dir, err := build.Registry(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*-runner.jar"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the registry is one of %q, %v", found, err)
	}
	err = ports.Try(1, func(free []int) error {
		url = fmt.Sprintf("http://127.0.0.1:%d/apis/ccompat/v7", free[0])
		server, err := process.Start(ctx, process.Options{
			Name: "registry", Path: "java", Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "registry.log"),
			Args: []string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1",
				fmt.Sprintf("-Dquarkus.http.port=%d", free[0]), "-jar", found[0]},
			Ready: func(ctx context.Context) error { return process.GetOK(ctx, url+"/schemas/types") },
		})
		if err == nil {
			t.Cleanup(func() {
				if err := server.Stop(); err != nil {
					t.Error(err)
				}
			})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// hostileRows are changes with what breaks readers: NUL, a half of a pair of surrogates, quotes, and no state.
func hostileRows() []*event.Change {
	c := event.Change{
		Type: event.Added, Cluster: "dev", Resource: event.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles", Kind: "Role"},
		Namespace: "default", Name: "h\x00i\ufffd\"😀", UID: "1", ResourceVersion: "7", ObservedAt: time.UnixMilli(1_700_000_000_123),
		After: []byte(`{"metadata":{"name":"h\u0000i\ud800\"😀","uid":"1","creationTimestamp":"2026-05-04T03:02:01Z",` +
			`"labels":{"a":"<b>&"},"ownerReferences":[{"kind":"X","name":"x\u0000","uid":"2"}]},"n":1e21,"regex":"[^\\u0000-\\u007f]\ud800\u0000"}`),
	}
	updated, deleted, unknown := c, c, c
	updated.Type, updated.Before, updated.ResourceVersion = event.Updated, c.After, "8"
	updated.Changed = []byte(`[{"path":"/n","from":1,"to":2}]`)
	deleted.Type, deleted.Before, deleted.After, deleted.ResourceVersion = event.Deleted, c.After, nil, "9"
	unknown.Type, unknown.After, unknown.ResourceVersion, unknown.Namespace = event.Deleted, nil, "10", ""
	return []*event.Change{&c, &updated, &deleted, &unknown}
}

// publishRows has a sink write changes to a topic, and returns the records.
func publishRows(t *testing.T, topic string, f format.Format, registry kafka.Registry, changes []*event.Change) (records []*kgo.Record) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s, err := kafka.New(kafka.Config{Brokers: cluster.ListenAddrs(), Topic: topic, Registry: registry, RequestTimeout: patience}, f,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := s.RestoreState(nil, 0, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckServers(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, c := range changes {
		lane, err := s.Lane(c)
		if err == nil {
			_, err = s.Publish(t.Context(), lane, []sinks.Message{{Offset: uint64(i + 1), Change: c}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for len(records) < len(changes) {
		fetched := client.PollFetches(t.Context())
		if err := fetched.Err(); err != nil {
			t.Fatal(err)
		}
		records = append(records, fetched.Records()...)
	}
	return records
}

// payloadOf returns what a row with its schema says, without what has no column.
func payloadOf(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var r struct{ Payload map[string]any }
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if source, ok := r.Payload["source"].(map[string]any); ok {
		delete(source, "changed")
		delete(source, "before") // says that the state is incomplete
	}
	return r.Payload
}

// dropNulls removes the members that are null, and returns the rest.
func dropNulls(members map[string]any) map[string]any {
	for name, value := range members {
		if inner, ok := value.(map[string]any); ok {
			dropNulls(inner)
		} else if value == nil {
			delete(members, name)
		}
	}
	return members
}
