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
	objects  = 50 // that change in turn
	patience = time.Minute
)

// ConfigMaps are what changes.
var ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// Routing configures an exporter to deliver those of a namespace to a stream, under subjects that begin with its name.
func Routing(url, stream, namespace string) string {
	return fmt.Sprintf(`resources:
  - {select: [configmaps], namespaces: {include: [%q]}}
sinks:
  - name: nats
    nats: {url: %q, stream: %q, subject: "%s.{namespace}.{name}"}
`, namespace, url, stream, stream)
}

func nameOf(i int) string { return fmt.Sprintf("stamped-%02d", i%objects) }

// Create creates the objects.
func Create(ctx context.Context, client dynamic.Interface, namespace string) error {
	for i := range objects {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": nameOf(i)}, "data": map[string]any{"n": "none"},
		}}
		if _, err := client.Resource(ConfigMaps).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Write makes the changes of a run, numbered from 0, at a rate, each with the time of its writing. It returns when each
// was answered.
func Write(ctx context.Context, client dynamic.Interface, namespace string, run, rate, changes int) ([]time.Time, error) {
	var all sync.WaitGroup
	var failed error
	var once sync.Once
	answered := make([]time.Time, changes)
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := range changes {
		<-ticker.C
		all.Go(func() {
			if err := change(ctx, client, namespace, run, i); err != nil {
				once.Do(func() { failed = err })
			}
			answered[i] = time.Now()
		})
	}
	all.Wait()
	return answered, failed
}

func change(ctx context.Context, client dynamic.Interface, namespace string, run, i int) error {
	patch := fmt.Appendf(nil, `{"data":{"n":"%d","at":"%d","run":"%d"}}`, i, time.Now().UnixNano(), run)
	_, err := client.Resource(ConfigMaps).Namespace(namespace).Patch(ctx, nameOf(i), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// mark is what change writes, as it stands in a message.
var mark = regexp.MustCompile(`"at":"(\d+)","n":"(\d+)","run":"(\d+)"`)

// Stamp is when a change was written and when it was stored.
type Stamp struct{ Written, Stored time.Time }

// Stamps reads a stream and returns when the changes of a run were written and stored there, by their numbers. No change may
// be missing.
func Stamps(ctx context.Context, js jetstream.JetStream, stream string, run, changes int) ([]Stamp, error) {
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
	stamps := make([]Stamp, changes)
	for missing := changes; missing > 0; missing-- {
		m, err := nextOf(ctx, messages, run)
		if err != nil {
			return nil, fmt.Errorf("%d of %d changes are missing: %w", missing, changes, err)
		}
		stamps[m.number] = m.Stamp
	}
	return stamps, nil
}

type message struct {
	number int
	Stamp
}

// nextOf returns the next message of a run.
func nextOf(ctx context.Context, messages jetstream.MessagesContext, run int) (message, error) {
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return message{}, err
		}
		found := mark.FindSubmatch(m.Data())
		if found == nil || string(found[3]) != strconv.Itoa(run) {
			continue // the object was created, or is in a list
		}
		about, err := m.Metadata()
		if err != nil {
			return message{}, err
		}
		at, _ := strconv.ParseInt(string(found[1]), 10, 64) // digits
		n, _ := strconv.Atoi(string(found[2]))
		return message{n, Stamp{time.Unix(0, at), about.Timestamp}}, nil
	}
}
