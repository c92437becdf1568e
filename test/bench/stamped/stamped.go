package stamped

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	// Namespace is where the objects are.
	Namespace = "default"

	objects  = 50 // that change in turn
	patience = time.Minute
)

// ConfigMaps are what changes.
var ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// Routing tells an exporter to deliver them to a stream, under subjects that begin with its name.
func Routing(url, stream string) string {
	return fmt.Sprintf(`resources:
  - select: [configmaps]
sinks:
  - name: nats
    nats: {url: %q, stream: %q, subject: "%s.{namespace}.{name}"}
`, url, stream, stream)
}

func nameOf(i int) string { return fmt.Sprintf("stamped-%02d", i%objects) }

// Create creates the objects.
func Create(ctx context.Context, client dynamic.Interface) error {
	for i := range objects {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": nameOf(i)}, "data": map[string]any{"n": "none"},
		}}
		if _, err := client.Resource(ConfigMaps).Namespace(Namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Write makes the changes of a run, numbered from 0, at a rate, each of which says when it was written.
func Write(ctx context.Context, client dynamic.Interface, run, rate, changes int) error {
	var all sync.WaitGroup
	var failed error
	var once sync.Once
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := range changes {
		<-ticker.C
		all.Go(func() {
			if err := change(ctx, client, run, i); err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	all.Wait()
	return failed
}

func change(ctx context.Context, client dynamic.Interface, run, i int) error {
	patch := fmt.Appendf(nil, `{"data":{"n":"%d","at":"%d","run":"%d"}}`, i, time.Now().UnixNano(), run)
	_, err := client.Resource(ConfigMaps).Namespace(Namespace).Patch(ctx, nameOf(i), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// mark is what change writes, as it stands in a message.
var mark = regexp.MustCompile(`"at":"(\d+)","n":"(\d+)","run":"(\d+)"`)

// Times reads a stream and returns for the changes of a run, from one number up to another, how long each took until it was
// stored there. No change may be missing.
func Times(ctx context.Context, js jetstream.JetStream, stream string, run, from, to int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	took := make([]time.Duration, to-from)
	for missing := to; missing > 0; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("%d of %d changes are missing: %w", missing, to, err)
		}
		found := mark.FindSubmatch(m.Data())
		if found == nil || string(found[3]) != strconv.Itoa(run) {
			continue // the object was created, or a list tells what it was
		}
		about, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		at, _ := strconv.ParseInt(string(found[1]), 10, 64) // digits
		n, _ := strconv.Atoi(string(found[2]))
		if missing--; n >= from && n < to {
			took[n-from] = about.Timestamp.Sub(time.Unix(0, at))
		}
	}
	return took, nil
}
