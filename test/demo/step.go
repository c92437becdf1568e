package main

import (
	"context"
	"time"
)

// step is something that someone does.
type step struct {
	says string
	does func(ctx context.Context) error
}

// steps plays one step after the other; the next begins when the subscriber has got everything about the one before.
func (s *script) steps(ctx context.Context, steps []step) error {
	for _, one := range steps {
		if err := s.meanwhile(ctx, []step{one}); err != nil {
			return err
		}
		if err := s.arrived(ctx); err != nil {
			return err
		}
	}
	return nil
}

// meanwhile plays steps without output.
func (s *script) meanwhile(ctx context.Context, steps []step) error {
	for _, one := range steps {
		if err := s.breathe(ctx); err != nil {
			return err
		}
		s.out.action(one.says)
		if err := one.does(ctx); err != nil {
			return err
		}
	}
	return nil
}

// arrived returns when everything that was written has arrived.
func (s *script) arrived(ctx context.Context) error { return s.account.awaitAll(ctx) }

// breathe gives the reader time.
func (s *script) breathe(ctx context.Context) error {
	if s.options.pace == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(s.options.pace)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
