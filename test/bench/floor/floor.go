package floor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options select what is copied and where to.
type Options struct {
	Kubeconfig string
	Brokers    []string
	Topics     map[string]string // by resource of the core group
}

// copier is one run.
type copier struct {
	config   *rest.Config
	http     *http.Client
	kafka    *kgo.Client
	failures atomic.Int64
}

// Run copies until ctx ends. It returns an error when a watch ended before, or a record was not written.
func Run(ctx context.Context, o Options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	config.DisableCompression = true
	c := copier{config: config}
	if c.http, err = rest.HTTPClientFor(config); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	c.kafka, err = kgo.NewClient(
		kgo.SeedBrokers(o.Brokers...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0),
		kgo.RequiredAcks(kgo.AllISRAcks()),
	)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	defer c.kafka.Close()
	running, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, len(o.Topics))
	for resource, topic := range o.Topics {
		go func() { ended <- c.copyWatch(running, resource, topic) }()
	}
	for range o.Topics {
		if failure := <-ended; ctx.Err() == nil { // one ends the others
			err = errors.Join(err, failure)
		}
		end()
	}
	err = errors.Join(err, c.kafka.Flush(context.WithoutCancel(ctx)))
	if n := c.failures.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("floor: %d records were not written", n))
	}
	return err
}

// copyWatch makes a record of each frame of a streaming list and the watch that follows it, but for bookmarks.
func (c *copier) copyWatch(ctx context.Context, resource, topic string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.config.Host+"/api/v1/"+resource+
		"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", nil)
	if err != nil {
		return err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	frames := bufio.NewReaderSize(answer.Body, 256<<10)
	for {
		frame, err := frames.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the watch ended")
		case err != nil:
			return err
		case bytes.HasPrefix(frame, []byte(`{"type":"BOOKMARK"`)):
			continue
		}
		c.kafka.Produce(ctx, &kgo.Record{Topic: topic, Value: bytes.Clone(frame)}, c.countFailure)
	}
}

func (c *copier) countFailure(_ *kgo.Record, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.failures.Add(1)
	}
}
