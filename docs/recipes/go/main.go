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

	"github.com/twmb/franz-go/pkg/kgo"

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

// follow reads a topic from its beginning until ctx ends. All records of one object are in one partition, so the order
// between partitions does not matter.
func follow(ctx context.Context, broker, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	var table consumer.Table
	for {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return err
		}
		for records := fetched.RecordIter(); !records.Done(); {
			if err := apply(&table, records.Next().Value); err != nil {
				return err
			}
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
