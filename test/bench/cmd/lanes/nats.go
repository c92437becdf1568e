package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

const (
	stream   = "BENCH"
	subject  = "bench.{group}.{resource}.{namespace}.{name}"
	window   = 1024
	batchBar = 1.2
)

// measureNATS compares on one server with a file-backed stream, which is another one in each round.
func (l load) measureNATS(ctx context.Context, dir string, out io.Writer) (err error) {
	server, err := natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Kill()) }()
	nc, err := natsgo.Connect(server.URL(), natsgo.Timeout(time.Minute))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(window), jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		return err
	}
	ways := []way{
		{"PublishAsync, window 1024", async(js, false)}, {"PublishAsync, window 1024, with message IDs", async(js, true)},
		{"the sink, in batches", natsSink(js, server.URL(), true)}, {"the sink, by message ID", natsSink(js, server.URL(), false)},
	}
	all, err := l.compare(ctx, server.Process(), ways...)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "NATS, %d changes of %d bytes, %d rounds, one file-backed stream on this machine\n\n", l.messages, body, l.rounds)
	fmt.Fprintf(out, "%-45s %10s %7s %10s %20s\n", "way", "changes/s", "ratio", "with IDs", "CPU us/change, both")
	for i, w := range ways {
		fmt.Fprintf(out, "%-45s %10.0f %7.2f %10.2f %20.1f\n", w.name, median(all[i].rates),
			median(ratios(all[i].rates, all[0].rates)), median(ratios(all[i].rates, all[1].rates)), median(all[i].costs))
	}
	fmt.Fprintf(out, "\nbar: in batches at least %.1f of PublishAsync\n", batchBar)
	return nil
}

// makeStream makes the stream afresh: a sink that was there before would find that it went back.
func makeStream(ctx context.Context, js jetstream.JetStream, batches bool) error {
	if err := js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"bench.>"}, AllowBatchPublish: batches})
	return err
}

// async publishes as most programs do. Order and duplicates under faults are not its concern.
func async(js jetstream.JetStream, ids bool) func(context.Context) (publish, func() error, error) {
	all := func(ctx context.Context, changes []*event.Change) error {
		template, err := sinks.ParseTemplate(subject)
		if err != nil {
			return err
		}
		for _, c := range changes {
			m := &natsgo.Msg{Subject: string(template.AppendName(nil, c, nats.AppendToken)), Data: format.AppendJSON(nil, c)}
			if ids {
				m.Header = natsgo.Header{natsgo.MsgIdHdr: {c.ID()}}
			}
			if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
				return err
			}
		}
		select {
		case <-js.PublishAsyncComplete():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func(ctx context.Context) (publish, func() error, error) {
		return all, func() error { return nil }, makeStream(ctx, js, false)
	}
}

// natsSink opens a sink, which is connected when the round begins. It publishes in batches if the stream takes them.
func natsSink(js jetstream.JetStream, url string, batches bool) func(context.Context) (publish, func() error, error) {
	return func(ctx context.Context) (publish, func() error, error) {
		if err := makeStream(ctx, js, batches); err != nil {
			return nil, nil, err
		}
		s, err := nats.New(nats.Config{URL: url, Stream: stream, Subject: subject}, format.JSON, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, nil, err
		}
		end := func() error { return s.Close(context.Background()) }
		if err := s.Ping(ctx); err != nil {
			return nil, nil, errors.Join(err, end())
		}
		return through(s), end, nil
	}
}
