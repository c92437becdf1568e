package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// upOptions are the arguments of "parts up".
type upOptions struct {
	parts         []string
	dir           string
	apiServerPort int
	natsPort      int
	kafkaPort     int
}

// parseUp takes the parts' names before, between or after the flags.
func parseUp(args []string) (upOptions, error) {
	var o upOptions
	flags := flag.NewFlagSet("parts up", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	flags.StringVar(&o.dir, "dir", "", "directory for data, logs and kubeconfigs; what an earlier run left there comes back")
	flags.IntVar(&o.apiServerPort, "apiserver-port", 0, "port of the API server; 0 takes a free one")
	flags.IntVar(&o.natsPort, "nats-port", 0, "port of the NATS server; 0 takes a free one")
	flags.IntVar(&o.kafkaPort, "kafka-port", 0, "port of the Kafka broker; 0 takes a free one")
	var words []string
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return o, err
			}
			return o, fmt.Errorf("%w: %w", errUsage, err)
		}
		if args = flags.Args(); len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	if o.dir == "" {
		return o, fmt.Errorf("%w: up needs --dir", errUsage)
	}
	var err error
	o.parts, err = partNames(words)
	return o, err
}

// running is a started part.
type running struct {
	stop func() error
	// reach are the environment variables with the address of the part.
	reach []string
}

// up starts the parts in turn, prints how to reach them, and runs until ctx ends. Then it stops them, the last first.
func up(ctx context.Context, o upOptions, out io.Writer) (err error) {
	file := filepath.Join(o.dir, "parts.env")
	// The file of a killed run would give a waiting script addresses of dead servers.
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var reach []string
	for _, part := range o.parts {
		r, startErr := startPart(ctx, part, o)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		reach = append(reach, r.reach...)
		fmt.Fprintln(out, strings.Join(r.reach, "\n"))
	}
	if err := writeWhole(file, strings.Join(reach, "\n")+"\n"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	fmt.Fprintf(out, "# up; the lines above are also in %s; stop with Ctrl-C\n", file)
	<-ctx.Done()
	return nil
}

func startPart(ctx context.Context, part string, o upOptions) (running, error) {
	dir := filepath.Join(o.dir, part)
	switch part {
	case controlPlanePart:
		c, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Port: o.apiServerPort})
		if err != nil {
			return running{}, err
		}
		return running{c.Stop, []string{"KUBECONFIG=" + c.Kubeconfig(), "ETCD_ENDPOINT=" + c.EtcdEndpoint()}}, nil
	case natsPart:
		s, err := natsserver.Start(ctx, natsserver.Options{Dir: dir, Port: o.natsPort})
		if err != nil {
			return running{}, err
		}
		return running{s.Stop, []string{"NATS_URL=" + s.URL()}}, nil
	case kafkaPart:
		b, err := kafka.Start(ctx, kafka.Options{Dir: dir, Port: o.kafkaPort})
		if err != nil {
			return running{}, err
		}
		return running{b.Stop, []string{"KAFKA_BROKERS=" + strings.Join(b.Brokers(), ",")}}, nil
	}
	return running{}, fmt.Errorf("no part %q", part)
}

// writeWhole writes a file that appears at once: a script may wait for it.
func writeWhole(path, text string) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
