package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// stage holds everything that runs. All its files are in one temporary directory.
type stage struct {
	options options
	out     *narrator
	account *account

	root         string // of the checkout
	dir          string
	controlPlane *controlplane.ControlPlane
	nats         *natsserver.Server
	cluster      *cluster
	exporter     *exporter
	subscriber   *subscriber
	screen       screen
}

// openStage starts the servers; what it returns has to be closed, also after an error. The exporter and the subscriber
// are started by the script.
func openStage(ctx context.Context, options options, out *narrator) (*stage, error) {
	s := &stage{options: options, out: out, account: newAccount(), screen: newScreen(out)}
	var err error
	if s.root, err = build.Root(); err != nil {
		return s, err
	}
	if s.dir, err = os.MkdirTemp("", "kubecdc-demo-"); err != nil {
		return s, err
	}
	// A compiler that is killed by Ctrl-C leaves its files behind: here they go with all others.
	if err := os.Setenv("TMPDIR", s.dir); err != nil {
		return s, err
	}
	if err := s.startControlPlane(ctx); err != nil {
		return s, err
	}
	if err := s.startNATS(ctx); err != nil {
		return s, err
	}
	return s, s.prepareExporter()
}

func (s *stage) startControlPlane(ctx context.Context) error {
	if err := buildControlPlane(ctx); err != nil {
		return err
	}
	began := time.Now()
	var err error
	s.controlPlane, err = controlplane.Start(ctx, controlplane.Options{Dir: filepath.Join(s.dir, "controlplane"), NoAudit: true})
	if err != nil {
		return err
	}
	s.out.part("kube-apiserver and etcd", s.controlPlane.URL(), time.Since(began))
	s.cluster, err = newCluster(s.controlPlane, s.account, 0)
	return err
}

// buildControlPlane builds what the start would build too, so that minutes of a first build do not count as its time.
func buildControlPlane(ctx context.Context) error {
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		return nil // the programs are there
	}
	_, err := build.Etcd(ctx)
	if err != nil {
		return err
	}
	_, err = build.APIServer(ctx)
	return err
}

func (s *stage) startNATS(ctx context.Context) error {
	if _, err := build.NATSServer(ctx); err != nil {
		return err
	}
	began := time.Now()
	var err error
	if s.nats, err = natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(s.dir, "nats")}); err != nil {
		return err
	}
	s.out.part("nats-server with JetStream", s.nats.URL(), time.Since(began))
	return nil
}

func (s *stage) prepareExporter() error {
	program := s.options.exporter
	if program == "" {
		program = filepath.Join(s.root, "bin", "exporter")
	}
	config := filepath.Join(s.root, "configs", "demo.yaml")
	var err error
	s.exporter, err = newExporter(program, config, s.dir, s.controlPlane.Kubeconfig(), s.nats.URL())
	return err
}

// hear takes an event from the subscriber. It is shown before it is recorded, so that a waiting step prints after it.
func (s *stage) hear(e *event) {
	if !s.account.knows(e.ID) {
		s.screen.show(e)
	}
	s.account.receive(e)
}

// startExporter starts the exporter and prints a line.
func (s *stage) startExporter(ctx context.Context) error {
	began := time.Now()
	if err := s.exporter.start(ctx); err != nil {
		return err
	}
	s.out.part("exporter, ready", fmt.Sprintf("process %d", s.exporter.running.Pid()), time.Since(began))
	return nil
}

// close ends everything, the readers before what they read from. The files go too, unless the demo failed: then they are
// needed to find out why.
func (s *stage) close(failed bool) error {
	var errs []error
	if s.exporter != nil {
		errs = append(errs, s.exporter.stop())
	}
	if s.subscriber != nil {
		errs = append(errs, s.subscriber.close())
	}
	if s.nats != nil {
		errs = append(errs, s.nats.Stop())
	}
	if s.controlPlane != nil {
		errs = append(errs, s.controlPlane.Stop())
	}
	err := errors.Join(errs...)
	if failed || err != nil {
		s.out.note("The logs are in " + s.dir + "; delete it when you have read them.")
		return err
	}
	return os.RemoveAll(s.dir)
}
