package main

import (
	"context"
	"errors"
	"fmt"
)

// kill kills the exporter where it hurts: while changes come in fast, with deletes among them.
func (s *script) kill(ctx context.Context) error {
	s.out.act("Kill the exporter",
		fmt.Sprintf("%d clients create, change and delete ConfigMaps, %d times a second; these changes are only counted. ", loadClients, loadPerSecond)+
			"In the middle of it the exporter gets kill -9. Changes go on while nobody watches, deletes among them.")
	load, err := s.startLoad(ctx)
	if err != nil {
		return err
	}
	if err := s.killAndRestart(ctx); err != nil {
		return errors.Join(err, load.stop())
	}
	if err := load.stop(); err != nil {
		return err
	}
	if err := s.arrived(ctx); err != nil {
		return err
	}
	lists, err := s.exporter.listRequests(ctx)
	if err != nil {
		return err
	}
	s.out.gap()
	s.out.note("All of it has arrived, state by state, even the ConfigMap that came and went while nobody watched: " +
		"the exporter went on where its journal ended.")
	s.out.note(fmt.Sprintf("LIST requests since its restart: %d.", lists))
	return nil
}

// startLoad returns when changes of the load have arrived: it is under way.
func (s *script) startLoad(ctx context.Context) (*load, error) {
	const underWay = 100
	writer, err := newCluster(s.controlPlane, s.account, loadPerSecond)
	if err != nil {
		return nil, err
	}
	before := s.account.tally().received()
	l := startLoad(ctx, writer)
	err = s.account.await(ctx, func(t tally) bool { return t.received() >= before+underWay })
	if err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return l, nil
}

func (s *script) killAndRestart(ctx context.Context) error {
	s.progress()
	s.out.action(fmt.Sprintf("kill -9 %d", s.exporter.running.Pid()))
	if err := s.exporter.kill(); err != nil {
		return err
	}
	err := s.meanwhile(ctx, []step{
		{"the autoscaler scales web to 9", func(ctx context.Context) error {
			return s.cluster.patch(ctx, "autoscaler", s.web, `{"spec": {"replicas": 9}}`)
		}},
		{"alice deletes the Deployment web", func(ctx context.Context) error { return s.cluster.remove(ctx, s.web) }},
		{"bob creates the ConfigMap whisper, and deletes it at once", func(ctx context.Context) error {
			whisper, err := s.cluster.create(ctx, "bob", configMaps, shop, "whisper", noteManifest)
			if err != nil {
				return err
			}
			return s.cluster.remove(ctx, whisper)
		}},
	})
	if err != nil {
		return err
	}
	s.progress()
	s.out.action("start the exporter again, on the same journal")
	return s.startExporter(ctx)
}

// progress returns the progress of the load and the subscriber.
func (s *script) progress() {
	t := s.account.tally()
	s.out.fact("so far", fmt.Sprintf("%d changes confirmed by the API server, %d received", t.written, t.received()))
}
