// Command parts builds or fetches, once, the real servers that kubecdc is tested against: a Kubernetes control plane, a NATS
// server with JetStream, an Apache Kafka broker.
//
//	parts build all
//
// Names of parts may be separated by commas or blanks; "all" stands for all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `usage:
  parts build [controlplane|nats|kafka|all]...
`

const (
	controlPlanePart = "controlplane"
	natsPart         = "nats"
	kafkaPart        = "kafka"
)

// errUsage makes the command exit with 2 instead of 1.
var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "parts:", err)
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	os.Exit(1)
}

func command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: no subcommand", errUsage)
	}
	if args[0] != "build" {
		return fmt.Errorf("%w: unknown subcommand %q", errUsage, args[0])
	}
	parts, err := partNames(args[1:])
	if err != nil {
		return err
	}
	return buildParts(ctx, parts, out)
}

// partNames returns the parts that words name, always in one order. No word means all.
func partNames(words []string) ([]string, error) {
	all := []string{controlPlanePart, natsPart, kafkaPart}
	wanted := make(map[string]bool)
	for _, word := range strings.FieldsFunc(strings.Join(words, ","), func(r rune) bool { return r == ',' }) {
		wanted[word] = true
	}
	if len(wanted) == 0 || wanted["all"] {
		return all, nil
	}
	var parts []string
	for _, part := range all {
		if wanted[part] {
			parts = append(parts, part)
			delete(wanted, part)
		}
	}
	for word := range wanted {
		return nil, fmt.Errorf("%w: no part %q; there are %s", errUsage, word, strings.Join(all, ", "))
	}
	return parts, nil
}
