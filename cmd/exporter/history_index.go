package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/history/index"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

// indexFlags name the sink that a history is read from.
type indexFlags struct {
	config, sink string
	source       *index.Source // nil: a folder or a bucket is read
}

// addPlaceFlags adds the flags that say which history is read.
func (f *historyFlags) addPlaceFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", defaultHistory, "folder of the history, or s3://BUCKET/PREFIX; with --config of its index, by default in the user's cache")
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration file (YAML): read the topics or the stream of its sink, through an index")
	cmd.Flags().StringVar(&f.sink, "sink", "", "with --config the name of the sink; may be left out if only one can be read back")
	completeConfig(cmd)
}

// openSource finds the sink with the topics to read, and the folder of the index.
func (f *historyFlags) openSource(cmd *cobra.Command) error {
	if f.config == "" {
		if f.sink != "" {
			return exit.With(exit.Usage, errors.New("--sink: belongs to --config, which is missing"))
		}
		return nil
	}
	cfg, err := config.Load(f.config)
	if err != nil {
		return err
	}
	s, err := inspect.ChooseStoredSink(cfg, f.sink)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	if form, err := s.ParseFormat(); err != nil || form.HasRows() || s.NATS != nil && s.NATS.KeepsRows() {
		return exit.With(exit.Usage, errors.Join(err, fmt.Errorf("the sink %s has rows, which lack what a history needs: name one with format json, "+
			"cloudevents or cloudevents-structured, or add a sink with history", s.Name)))
	}
	f.source = &index.Source{Routed: cfg.RoutedTopics(s.Name), Say: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }}
	var servers []string
	if s.Kafka != nil {
		f.source.Of, servers = "the topic "+s.Kafka.Topic, s.Kafka.Brokers
	} else {
		f.source.Of, servers = "the stream "+s.NATS.StreamName(), []string{s.NATS.URL}
	}
	if !cmd.Flags().Changed("dir") {
		cache, err := os.UserCacheDir()
		if err != nil {
			return exit.With(exit.Usage, fmt.Errorf("--dir is missing: %w", err))
		}
		of := crc32.ChecksumIEEE([]byte(strings.Join(append(servers, f.source.Of), "\n")))
		name := strings.Join([]string{cfg.Cluster.Name, s.Name, fmt.Sprintf("%08x", of)}, "-")
		f.dir = filepath.Join(cache, "kubecdc", "history", strings.TrimPrefix(name, "-"))
	}
	if strings.HasPrefix(f.dir, "s3:") {
		return exit.With(exit.Usage, errors.New("--dir: an index is in a folder"))
	}
	f.source.Dir = f.dir
	f.source.Reader, err = app.OpenStoredReader(s)
	return exit.With(exit.Environment, err)
}

// fill brings the index up to date, if there is one.
func (f *historyFlags) fill(ctx context.Context) error {
	if f.source == nil {
		return nil
	}
	debug.SetGCPercent(gcPercentOfServe)
	if err := os.MkdirAll(filepath.Dir(f.dir), 0o700); err != nil {
		return exit.With(exit.Environment, err)
	}
	err := f.source.Fill(ctx)
	if _, absent := os.Stat(f.dir); err != nil && absent == nil && ctx.Err() == nil {
		err = fmt.Errorf("%w\n--dir %s without --config shows what the index has", err, f.dir)
	}
	return exit.With(exit.Environment, err)
}

// follow has an answer go on while the index is filled.
func (f *historyFlags) follow(ctx context.Context, answer func(context.Context) error) error {
	if f.source == nil {
		return answer(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	filled := make(chan error, 1)
	go func() {
		filled <- f.source.Follow(ctx)
		stop()
	}()
	err := answer(ctx)
	stop()
	return errors.Join(err, exit.With(exit.Environment, <-filled))
}

// closeSource closes the connections to the bus.
func (f *historyFlags) closeSource() {
	if f.source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), inspect.CloseReaderTimeout)
	defer cancel()
	_ = f.source.Reader.Close(ctx) // it only read
}
