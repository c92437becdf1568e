package kafka

import (
	"context"
	"errors"
	"sync"
)

// Brokers are the brokers of one cluster.
type Brokers []*Broker

// Brokers returns the addresses of all brokers.
func (b Brokers) Brokers() []string {
	addresses := make([]string, 0, len(b))
	for _, broker := range b {
		addresses = append(addresses, broker.Address())
	}
	return addresses
}

// start starts all brokers at once: none is ready before most of them run.
func (b Brokers) start(ctx context.Context) error {
	return b.each(func(broker *Broker) error { return broker.service.Start(ctx) })
}

// Stop stops all brokers at once. They are gone in any case, see Broker.Stop.
func (b Brokers) Stop() error { return b.each((*Broker).Stop) }

// Kill kills all brokers at once.
func (b Brokers) Kill() error { return b.each((*Broker).Kill) }

func (b Brokers) each(do func(*Broker) error) error {
	errs := make([]error, len(b))
	var group sync.WaitGroup
	for i, broker := range b {
		group.Go(func() { errs[i] = do(broker) })
	}
	group.Wait()
	return errors.Join(errs...)
}
