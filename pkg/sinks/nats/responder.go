package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// ResponderOptions configure a responder.
type ResponderOptions struct {
	// Config has the settings of the connection; the responder has one of its own.
	Config Config
	// Subject of the requests, see [Config.ValidateRequestSubject].
	Subject string
	// Respond returns the answer to a request, within a bounded time. It is called concurrently.
	Respond func(ctx context.Context, request []byte) []byte
	// Report is called with the reason why no requests arrive, as a problem of a sink, and with nil when they do. It is called
	// again while nothing changes.
	Report func(error)
}

// Responder answers requests on a subject of core NATS. Several with the same subject share the requests.
type Responder struct {
	ResponderOptions
	connector connector
	slots     chan struct{} // one for each answer under way
	answering sync.WaitGroup
}

const (
	responderGroup   = "kubecdc" // of the processes that share the requests, during a failover for example
	maxRequests      = 8         // that are answered at once
	responderPoll    = time.Second
	responderClosing = 5 * time.Second
)

// NewResponder returns a responder. It opens no connection.
func NewResponder(o ResponderOptions) *Responder {
	o.Config.SetDefaults()
	return &Responder{ResponderOptions: o, connector: connector{cfg: o.Config}, slots: make(chan struct{}, maxRequests)}
}

// Run answers requests until ctx ends, waits for the answers under way, and returns nil.
func (r *Responder) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.serveRequests(ctx)
		if ctx.Err() != nil {
			break
		}
		r.Report(err)
		select {
		case <-ctx.Done():
		case <-time.After(connection.UnavailablePause):
		}
	}
	r.answering.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), responderClosing)
	defer cancel()
	_ = r.connector.closeLink(closing) // what is lost is an answer, and its sender notices
	return nil
}

// serveRequests answers requests over one link, until that fails for good. The library subscribes again after a reconnect.
func (r *Responder) serveRequests(ctx context.Context) error {
	l, err := r.connector.connectedLink(ctx)
	if err != nil {
		return err
	}
	requests, err := l.SubscribeGroup(ctx, r.Subject, responderGroup)
	if err != nil {
		return err
	}
	defer r.answerPending(ctx, l, requests)
	r.Report(nil)
	for {
		m, err := nextRequest(ctx, requests)
		switch {
		case err == nil:
			r.startAnswer(ctx, l, m)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			if err = l.WaitConnected(ctx); ctx.Err() != nil || err != nil && l.IsDead() {
				return err
			}
			r.Report(err)
		case errors.Is(err, nats.ErrSlowConsumer): // requests were dropped, and their senders get no answer
		default:
			return cmp.Or(l.WaitConnected(ctx), err)
		}
	}
}

// answerPending ends a subscription, and answers the requests that the server had passed on before that: those that follow
// have no responders, and none is lost.
func (r *Responder) answerPending(ctx context.Context, l *connection.Link, requests *nats.Subscription) {
	if requests.Drain() != nil { // the connection is closed
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), responderClosing)
	defer cancel()
	for {
		m, err := requests.NextMsgWithContext(limited)
		if err != nil {
			return
		}
		r.startAnswer(limited, l, m)
	}
}

func nextRequest(ctx context.Context, requests *nats.Subscription) (*nats.Msg, error) {
	limited, cancel := context.WithTimeout(ctx, responderPoll)
	defer cancel()
	return requests.NextMsgWithContext(limited)
}

// startAnswer answers a request in a goroutine, of which there are so many at most: it waits until one has ended, also after
// the end of ctx. A message that asks for no answer is executed, too.
func (r *Responder) startAnswer(ctx context.Context, l *connection.Link, m *nats.Msg) {
	r.slots <- struct{}{}
	r.answering.Go(func() {
		defer func() { <-r.slots }()
		answer := &nats.Msg{Subject: m.Reply, Data: r.Respond(ctx, m.Data)}
		if m.Reply != "" {
			_ = l.Publish(context.WithoutCancel(ctx), answer) // the sender asks again
		}
	})
}

// ValidateRequestSubject checks a subject for requests: it has no wildcards, and changes are not written there.
func (c Config) ValidateRequestSubject(subject string) error {
	if subject == "" {
		return errors.New("is empty")
	}
	if err := validateLiteral(subject); err != nil {
		return err
	}
	for _, text := range append([]string{c.SubjectTemplate()}, c.Routed...) {
		template, err := sinks.ParseTemplate(text)
		if err == nil && stream.Covers(subjectPattern(template), subject) {
			return fmt.Errorf("%q is a subject of changes, by the template %q", subject, text)
		}
	}
	return nil
}
