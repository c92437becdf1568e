package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// OpenState makes what reads the configured state, for commands. It contacts nothing. The caller closes it.
func OpenState(cfg *config.Config) (k *state.Writer, closed func(context.Context) error, err error) {
	if !cfg.State.Enabled() {
		return nil, nil, errors.New("state.sink is not set: the only memory is the journal, see exporter journal stat")
	}
	s, err := sinkConfigByName(cfg, cfg.State.Sink)
	if err != nil {
		return nil, nil, err
	}
	bus, err := newSink(s, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, fmt.Errorf("sink %s: %w", s.Name, err)
	}
	options := state.Options{Group: cfg.State.Name, Lease: cfg.Election.Lease, Owner: "exporter state", Logger: slog.New(slog.DiscardHandler)}
	k, err = state.New(options, func(contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
		keeps, ok := bus.sink.(sinks.StateOpener)
		if !ok {
			return nil, fmt.Errorf("state.sink: sink %s keeps no state", s.Name)
		}
		return keeps.OpenState(cfg.State.Name, contents)
	})
	if err != nil {
		return nil, nil, errors.Join(err, bus.sink.Close(context.Background()))
	}
	return k, func(ctx context.Context) error { return errors.Join(k.Close(ctx), bus.sink.Close(ctx)) }, nil
}
