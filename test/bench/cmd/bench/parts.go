package main

import (
	"context"
	"flag"
	"strconv"

	"github.com/kubecdc/kubecdc/test/bench/baseline"
	"github.com/kubecdc/kubecdc/test/bench/broker"
	"github.com/kubecdc/kubecdc/test/bench/corpus"
	"github.com/kubecdc/kubecdc/test/bench/floor"
	"github.com/kubecdc/kubecdc/test/bench/replay"
)

// corpusFlags lets every process make the same corpus.
func corpusFlags(f *flag.FlagSet, o *corpus.Options) {
	f.IntVar(&o.Objects, "objects", 20_000, "objects that exist at the start")
	f.IntVar(&o.Changes, "changes", 100_000, "changes that follow")
	f.Uint64Var(&o.Seed, "seed", 1, "another seed, another history")
	f.BoolVar(&o.Events, "events", false, "Events only")
}

// corpusArgs is what corpusFlags reads.
func corpusArgs(o corpus.Options) []string {
	return []string{
		"-objects", strconv.Itoa(o.Objects), "-changes", strconv.Itoa(o.Changes), "-seed", strconv.FormatUint(o.Seed, 10),
		"-events=" + strconv.FormatBool(o.Events),
	}
}

// topicOf maps each resource to the topic that both systems write it to.
func topicOf() map[string]string {
	topics := map[string]string{}
	for _, r := range corpus.Resources {
		topics[r.String()] = "k8s.core." + r.String()
	}
	return topics
}

func topicNames() []string {
	var names []string
	for _, r := range corpus.Resources {
		names = append(names, topicOf()[r.String()])
	}
	return names
}

func runReplay(ctx context.Context, args []string) error {
	var o corpus.Options
	f := flag.NewFlagSet("bench replay", flag.ContinueOnError)
	corpusFlags(f, &o)
	kubeconfig := f.String("kubeconfig", "", "file to write")
	if err := f.Parse(args); err != nil {
		return err
	}
	c, err := corpus.New(o)
	if err != nil {
		return err
	}
	return replay.New(replay.Options{Corpus: c, Kubeconfig: *kubeconfig}).Run(ctx)
}

func runBroker(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("bench broker", flag.ContinueOnError)
	address := f.String("address-file", "", "file to write")
	partitions := f.Int("partitions", broker.Partitions, "of each topic")
	if err := f.Parse(args); err != nil {
		return err
	}
	return broker.Run(ctx, *address, topicNames(), *partitions)
}

func runFloor(ctx context.Context, args []string) error {
	o := floor.Options{Topics: topicOf()}
	f := flag.NewFlagSet("bench floor", flag.ContinueOnError)
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "of the API server")
	address := f.String("broker", "", "host:port of the broker")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.Brokers = []string{*address}
	return floor.Run(ctx, o)
}

func runBaseline(ctx context.Context, args []string) error {
	o := baseline.Options{Topics: topicOf()}
	f := flag.NewFlagSet("bench baseline", flag.ContinueOnError)
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "of the API server")
	f.BoolVar(&o.DropManagedFields, "drop-managed-fields", false, "drop them by an informer transform")
	address := f.String("broker", "", "host:port of the broker")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.Brokers = []string{*address}
	return baseline.Run(ctx, o)
}
