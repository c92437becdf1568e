// Command go keeps the objects of a topic in the format json in memory, with pkg/consumer, and prints each change.
//
//	go run ./docs/recipes/go 127.0.0.1:9092 k8s.dev.core.configmaps
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/consumer"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go BROKER TOPIC")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := follow(ctx, os.Args[1], os.Args[2])
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// follow reads all partitions from the beginning until ctx ends. All records of one object are in one partition, so the
// order between partitions does not matter.
func follow(ctx context.Context, broker, topic string) error {
	partitions, err := kafka.DefaultDialer.LookupPartitions(ctx, "tcp", broker, topic)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	values := make(chan []byte)
	for _, p := range partitions {
		go func() {
			stop(read(ctx, kafka.ReaderConfig{Brokers: []string{broker}, Topic: topic, Partition: p.ID}, values))
		}()
	}
	var table consumer.Table
	for {
		select {
		case value := <-values:
			if err := apply(&table, value); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read sends the values of one partition until ctx ends.
func read(ctx context.Context, partition kafka.ReaderConfig, to chan<- []byte) error {
	reader := kafka.NewReader(partition)
	defer reader.Close()
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		select {
		case to <- message.Value:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply applies one record to the table and prints it.
func apply(table *consumer.Table, value []byte) error {
	record, err := consumer.Parse(value)
	if err != nil {
		return err
	}
	if err := table.Apply(record); err != nil {
		return err
	}
	resource := consumer.Resource{Cluster: record.Cluster, Group: record.Group, Resource: record.Resource}
	fmt.Printf("%s %s/%s; there are %d %s\n", record.Type, record.Namespace, record.Name, table.Len(resource), record.Resource)
	return nil
}
