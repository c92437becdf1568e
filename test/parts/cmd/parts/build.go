package main

import (
	"context"
	"fmt"
	"io"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
)

// programs names what a part is made of.
func programs(part string) []func(context.Context) (string, error) {
	switch part {
	case controlPlanePart:
		return []func(context.Context) (string, error){build.Etcd, build.APIServer}
	case natsPart:
		return []func(context.Context) (string, error){build.NATSServer}
	case kafkaPart:
		return []func(context.Context) (string, error){build.Kafka, kafka.Archive}
	}
	return nil
}

// buildParts builds the programs of the parts one after the other, since each build uses all cores, and prints where
// they are.
func buildParts(ctx context.Context, parts []string, out io.Writer) error {
	for _, part := range parts {
		for _, provide := range programs(part) {
			path, err := provide(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, path)
		}
	}
	return nil
}
