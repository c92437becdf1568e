package baseline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// Options select what is exported and where to.
type Options struct {
	Kubeconfig string
	Brokers    []string
	Topics     map[string]string // by resource of the core group
	// DropManagedFields removes metadata.managedFields before an object is cached, by an informer transform.
	DropManagedFields bool
}

// Record is the value of a message.
type Record struct {
	Type   string         `json:"type"` // added, updated or deleted
	Object map[string]any `json:"object"`
}

// item is a record on its way to the worker.
type item struct {
	topic  string
	typ    string
	object *unstructured.Unstructured
}

// exporter is one run.
type exporter struct {
	options  Options
	queue    chan item
	writer   *kafka.Writer
	failures atomic.Int64
}

// patience is how long a broker may take to answer: what is written again after that is there twice, which only a machine
// that stands still would bring about.
const patience = time.Minute

// queued is the capacity of the channel between handlers and worker.
const queued = 1000

// Run exports until ctx ends, then writes what is queued. It returns an error when it could not begin, or when messages
// were given up by the writer.
func Run(ctx context.Context, options Options) error {
	e := &exporter{options: options, queue: make(chan item, queued)}
	e.writer = &kafka.Writer{
		Addr: kafka.TCP(options.Brokers...), Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 10 * time.Millisecond, Async: true, Completion: e.completed,
		ReadTimeout: patience, WriteTimeout: patience,
	}
	factory, err := e.informers()
	if err != nil {
		return err
	}
	worked := make(chan error, 1)
	go func() { worked <- e.work(context.WithoutCancel(ctx)) }()
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	close(e.queue)
	err = errors.Join(<-worked, e.writer.Close())
	if n := e.failures.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("baseline: %d messages were not written", n))
	}
	return err
}

// completed is the writer's callback at the end of a batch.
func (e *exporter) completed(messages []kafka.Message, err error) {
	if err != nil {
		e.failures.Add(int64(len(messages)))
		slog.Error("baseline: write failed", "messages", len(messages), "error", err)
	}
}

// informers prepares an informer for each resource.
func (e *exporter) informers() (dynamicinformer.DynamicSharedInformerFactory, error) {
	config, err := clientcmd.BuildConfigFromFlags("", e.options.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("baseline: %w", err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("baseline: %w", err)
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	for resource, topic := range e.options.Topics {
		informer := factory.ForResource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Informer()
		if e.options.DropManagedFields {
			if err := informer.SetTransform(dropManagedFields); err != nil {
				return nil, fmt.Errorf("baseline: %w", err)
			}
		}
		if _, err := informer.AddEventHandler(e.handler(topic)); err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
	}
	return factory, nil
}

// dropManagedFields is an informer transform.
func dropManagedFields(o any) (any, error) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return o, nil
}

// handler puts an informer's events into the channel.
func (e *exporter) handler(topic string) cache.ResourceEventHandler {
	put := func(typ string, o any) {
		if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = tombstone.Obj
		}
		if u, ok := o.(*unstructured.Unstructured); ok {
			e.queue <- item{topic, typ, u}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { put("added", o) },
		UpdateFunc: func(_, o any) { put("updated", o) },
		DeleteFunc: func(o any) { put("deleted", o) },
	}
}

// work marshals and writes until the channel is closed.
func (e *exporter) work(ctx context.Context) error {
	for i := range e.queue {
		value, err := json.Marshal(Record{Type: i.typ, Object: i.object.Object})
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		key := i.object.GetNamespace() + "/" + i.object.GetName()
		if err := e.writer.WriteMessages(ctx, kafka.Message{Topic: i.topic, Key: []byte(key), Value: value}); err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
	}
	return nil
}
