package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

const shop = "shop" // the namespace of the script

// script is a stage with the objects that its acts share.
type script struct {
	*stage
	settings, web object
}

// run plays the demo from its start to its end and leaves nothing behind. That a user stops it before is no error.
func run(ctx context.Context, options options, out *narrator) error {
	out.title("kubecdc: every change of a Kubernetes cluster, on your message bus")
	out.note("A real API server, a real NATS and the exporter run on this machine, for this demo only.")
	out.act("Start the parts", "The first time they are built from source, which takes some minutes.")
	s := new(script)
	var err error
	s.stage, err = openStage(ctx, options, out)
	if err == nil {
		err = s.play(ctx)
	}
	if err != nil && ctx.Err() != nil {
		out.note("Stopped before its end.")
		return s.close(false)
	}
	return errors.Join(err, s.close(err != nil))
}

func (s *script) play(ctx context.Context) error {
	acts := []func(context.Context) error{s.listen, s.change, s.extend, s.kill, s.count, s.remember}
	for _, act := range acts {
		if err := act(ctx); err != nil {
			return s.explain(ctx, err)
		}
	}
	s.out.text(epilogue)
	if s.options.keep {
		return s.keep(ctx)
	}
	return nil
}

// listen starts the exporter on a cluster that is not empty.
func (s *script) listen(ctx context.Context) (err error) {
	for _, name := range []string{shop, loadNamespace} {
		if err := s.cluster.namespace(ctx, name); err != nil {
			return err
		}
	}
	if s.settings, err = s.cluster.create(ctx, "alice", configMaps, shop, "settings", settingsManifest); err != nil {
		return err
	}
	if err := s.startExporter(ctx); err != nil {
		return err
	}
	s.out.act("Listen",
		"A subscriber reads the NATS stream "+stream+" and prints what arrives, one line a change. What exists already comes "+
			"first, as a snapshot: here a ConfigMap that was there before the exporter.")
	s.out.columns()
	if s.subscriber, err = subscribe(s.nats.URL(), s.hear); err != nil {
		return err
	}
	return s.arrived(ctx)
}

// change plays the everyday life of two objects. The autoscaler writes to the Deployment itself: of a write through the
// subresource scale Kubernetes records the writer but not the time, so it is unknown whether it was the last one.
func (s *script) change(ctx context.Context) error {
	s.out.act("Change things",
		"Lines with > say what happens in the cluster. An event carries the whole object and who wrote it; "+
			"the subscriber compares it with the one before.")
	return s.steps(ctx, []step{
		{"alice creates the Deployment web, with 2 replicas", func(ctx context.Context) (err error) {
			s.web, err = s.cluster.create(ctx, "alice", deployments, shop, "web", webManifest)
			return err
		}},
		{"the controller reports on it (no controllers run here: the demo plays this one)", func(ctx context.Context) error {
			return s.cluster.patch(ctx, "controller", s.web,
				`{"status": {"observedGeneration": 1, "replicas": 2, "readyReplicas": 2}}`, "status")
		}},
		{"the autoscaler scales it to 5", func(ctx context.Context) error {
			return s.cluster.patch(ctx, "autoscaler", s.web, `{"spec": {"replicas": 5}}`)
		}},
		{"a pipeline rolls out a new image", func(ctx context.Context) error {
			return s.cluster.patch(ctx, "pipeline", s.web,
				`{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "nginx:1.29"}]}}}}`)
		}},
		{"bob edits the ConfigMap settings: one value changes, one goes, one is new", func(ctx context.Context) error {
			return s.cluster.patch(ctx, "bob", s.settings, `{"data": {"theme": "dark", "currency": null, "banner": "Sale!"}}`)
		}},
	})
}

// extend teaches the API server a new type while the exporter runs.
func (s *script) extend(ctx context.Context) error {
	s.out.act("Add a type of your own",
		"The configuration selects *.example.com. A type that appears while the exporter runs is watched without a restart.")
	err := s.steps(ctx, []step{
		{"carol defines the custom resource Deal; the API server reports that it serves it", func(ctx context.Context) error {
			_, err := s.cluster.create(ctx, "carol", definitions, "", dealType, dealDefinition)
			return err
		}},
	})
	if err != nil {
		return err
	}
	s.out.note("The exporter looks for new types every few seconds …")
	if err := s.exporter.awaitLive(ctx, dealType); err != nil {
		return err
	}
	s.out.note("… and watches " + dealType + " now.")
	var deal object
	return s.steps(ctx, []step{
		{"carol creates a Deal", func(ctx context.Context) (err error) {
			deal, err = s.cluster.create(ctx, "carol", deals, shop, "spring", dealManifest)
			return err
		}},
		{"carol makes it a better one", func(ctx context.Context) error {
			return s.cluster.patch(ctx, "carol", deal, `{"spec": {"percent": 25}}`)
		}},
	})
}

// count compares the two sides.
func (s *script) count(ctx context.Context) error {
	if err := s.arrived(ctx); err != nil {
		return err
	}
	t := s.account.tally()
	s.out.act("Count",
		"Each state of an object has a number, the resourceVersion. Each that the API server confirmed to the demo's clients "+
			"must have arrived, and per object in this order.")
	s.out.fact("changes made", t.written)
	s.out.fact("received", t.received())
	s.out.fact("missing", t.missing)
	s.out.fact("out of order", t.reversed)
	s.out.fact("gap records", t.gaps)
	s.out.fact("received twice", t.repeated)
	s.out.fact("by the API server itself", t.others)
	if !t.right() {
		s.out.verdict(false, "The promise was broken.")
		return fmt.Errorf("%d changes are missing, %d came out of order, %d gap records: %s", t.missing, t.reversed, t.gaps, some(s.account.missing()))
	}
	s.out.verdict(true, "Nothing is lost.")
	return nil
}

// remember asks the history on disk for what has been. It writes for a moment longer than the subscriber reads.
func (s *script) remember(ctx context.Context) error {
	s.out.act("Ask what was",
		"The exporter also keeps a history in a folder of Parquet files. It answers when all is over, like git log, git show and git blame.")
	if err := s.exporter.awaitMetric(ctx, historyWritten); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"history", "log", "deploy/web", "-n", shop},
		{"history", "blame", "configmap/settings", "-n", shop},
	} {
		s.out.action("exporter " + strings.Join(args, " "))
		answer, err := s.exporter.ask(ctx, args...)
		if err != nil {
			return err
		}
		s.out.text(answer)
	}
	return nil
}

// keep leaves everything to the user until the user has had enough.
func (s *script) keep(ctx context.Context) error {
	s.screen.loud.Store(true)
	s.out.act("Your turn", "")
	s.out.text(fmt.Sprintf(invitation, s.controlPlane.Kubeconfig(), s.nats.URL(), s.exporter.admin, s.exporter.log))
	s.out.gap()
	s.out.columns()
	select {
	case <-ctx.Done():
		return nil
	case <-s.exporter.running.Done():
		return fmt.Errorf("the exporter ended: %w", s.exporter.running.Result())
	case <-s.subscriber.done:
		return s.subscriber.err
	}
}

// explain adds the exporter's own status to an error.
func (s *script) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil || s.exporter == nil {
		return err
	}
	if notReady := s.exporter.ready(ctx); notReady != nil {
		err = fmt.Errorf("%w; the exporter is not ready: %w", err, notReady)
	}
	return fmt.Errorf("%w; its log is %s", err, s.exporter.log)
}
