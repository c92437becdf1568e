package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/wire"
)

// Changes of one object with a distant server.
const (
	hotDelay = 2500 * time.Microsecond // in each direction
	hotRate  = 5000                    // changes a second
	hotTick  = 10 * time.Millisecond
)

// hot delivers the changes of one object as they come, to a server that is 5 ms away, and prints how late they are
// acknowledged.
func hot(ctx context.Context, server *natsserver.Server, lasts time.Duration, out io.Writer) (err error) {
	way, err := wire.New(hotDelay)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- way.Serve(strings.TrimPrefix(server.URL(), "nats://")) }()
	defer func() { way.Close(); err = errors.Join(err, <-ended) }()
	s, err := nats.New(nats.Config{URL: "nats://" + way.Address(), Stream: "HOT", Subject: "hot.{group}.{resource}.{namespace}.{name}",
		Create: nats.Create{Enabled: true}}, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	if err := s.Ping(ctx); err != nil {
		return err
	}
	changes := changesOf(0, int(lasts.Seconds()*hotRate))
	for _, c := range changes {
		c.Name, c.UID = "hot", "hot"
	}
	lane, err := s.Lane(changes[0])
	if err != nil {
		return err
	}
	began := time.Now()
	due := func(i int) time.Time { return began.Add(time.Duration(i) * time.Second / hotRate) }
	var late []time.Duration
	for done := 0; done < len(changes); {
		var batch []sinks.Message
		for i := done; i < len(changes) && !due(i).After(time.Now()); i++ {
			batch = append(batch, sinks.Message{Offset: uint64(i + 1), Change: changes[i]})
		}
		if len(batch) == 0 {
			<-time.After(hotTick)
			continue
		}
		if _, err := s.Publish(ctx, lane, batch); err != nil {
			return err
		}
		for range batch {
			late = append(late, time.Since(due(done)))
			done++
		}
	}
	quarter := func(n int) time.Duration {
		return slices.Max(late[n*len(late)/4 : (n+1)*len(late)/4]).Round(time.Millisecond)
	}
	fmt.Fprintf(out, "\none object, %d changes/s for %v, server %v away: acknowledged at most %v late in the first quarter, %v in the last\n",
		hotRate, lasts, 2*hotDelay, quarter(0), quarter(3))
	return nil
}
