package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

const (
	loadNamespace = "warehouse"
	loadClients   = 4
	loadPerSecond = 200 // requests, of all clients together
	loadUpdates   = 3   // of each object, between its creation and its end
)

// load writes in the background, by several clients, until it is stopped: each creates a ConfigMap, changes it some times,
// deletes it and starts again.
type load struct {
	stopping chan struct{}
	clients  sync.WaitGroup
	failed   chan error // one for each client at most
}

func startLoad(ctx context.Context, c *cluster) *load {
	l := &load{stopping: make(chan struct{}), failed: make(chan error, loadClients)}
	for n := range loadClients {
		l.clients.Go(func() {
			if err := l.write(ctx, c, fmt.Sprintf("item-%d", n+1)); err != nil {
				l.failed <- err
			}
		})
	}
	return l
}

// stop lets each client finish the life of its object, and returns when all have.
func (l *load) stop() error {
	close(l.stopping)
	l.clients.Wait()
	close(l.failed)
	var errs []error
	for err := range l.failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l *load) write(ctx context.Context, c *cluster, name string) error {
	for {
		select {
		case <-l.stopping:
			return nil
		default:
		}
		if err := life(ctx, c, name); err != nil {
			return err
		}
	}
}

// life is that of one object, from its creation to its end.
func life(ctx context.Context, c *cluster, name string) error {
	o, err := c.create(ctx, "load", configMaps, loadNamespace, name, itemManifest)
	if err != nil {
		return err
	}
	for n := range loadUpdates {
		if err := c.patch(ctx, "load", o, fmt.Sprintf(`{"data": {"stock": "%d"}}`, n+1)); err != nil {
			return err
		}
	}
	return c.remove(ctx, o)
}
