package app

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/signals/topic"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
)

// signalIntakes receive signals over buses, while a composition is the active one. They hand each request over to the
// handler of all signals.
type signalIntakes []*signalIntake

// signalIntake is one way for signals.
type signalIntake struct {
	name      string
	run       func(context.Context) error
	condition *condition.Condition
	task      *task
}

// newSignalIntakes makes the intakes that the configuration of c asks for. They open no connection.
func newSignalIntakes(c *composition) (all signalIntakes) {
	handler := signalHandler{func() *composition { return c }}
	if to := c.cfg.Signals.NATS; to.Sink != "" {
		sink, _ := c.cfg.FindSink(to.Sink) // the configuration was checked
		i := newSignalIntake("nats", c.log)
		i.run = nats.NewResponder(nats.ResponderOptions{
			Config: *sink.NATS, Subject: to.Subject, Report: i.report,
			Respond: func(ctx context.Context, request []byte) []byte { return signals.Respond(ctx, handler, request) },
		}).Run
		all = append(all, i)
	}
	to := c.cfg.Signals.Kafka
	if to.Sink == "" {
		topic.DropPositions(c.signals.registry)
		return all
	}
	sink, _ := c.cfg.FindSink(to.Sink)
	i := newSignalIntake("kafka", c.log)
	i.run = topic.New(topic.Options{
		Cluster: sink.Kafka.ClusterOptions(), Topic: to.Topic, Handler: handler, Book: c.signals.registry, Report: i.report, Logger: c.log,
	}).Run
	return append(all, i)
}

// newSignalIntake returns an intake by which no signals arrive yet.
func newSignalIntake(name string, log *slog.Logger) *signalIntake {
	pending := condition.Problem{Code: condition.SignalsUnreceived, Cause: "not connected yet", Remedy: "wait for the first answer"}
	return &signalIntake{name: name, condition: condition.New(log, "signals/"+name, pending)}
}

// report updates the condition with the reason why no signals arrive; nil: they do.
func (i *signalIntake) report(err error) {
	if err == nil {
		i.condition.Clear()
		return
	}
	p := condition.ProblemOf(err, condition.SinkFailing)
	p.Remedy = cmp.Or(p.Remedy, p.Code.Kind().Remedy)
	p.Code = condition.SignalsUnreceived
	i.condition.Update(p)
}

func (all signalIntakes) start(failed func(error)) {
	for _, i := range all {
		i.task = startTask("signals over "+i.name, i.run, failed)
	}
}

// end ends the reception and does not wait for the signals in progress; stop does.
func (all signalIntakes) end() {
	for _, i := range all {
		if i.task != nil {
			i.task.cancel()
		}
	}
}

func (all signalIntakes) stop() {
	for _, i := range all {
		i.task.stop()
		i.condition.Close()
	}
}

func (all signalIntakes) statuses() (statuses []condition.Status) {
	for _, i := range all {
		statuses = append(statuses, i.condition.Status())
	}
	return statuses
}
