package controlplane

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// StartControllerManager starts a real kube-controller-manager with the named controllers, each under its own service
// account, and returns when it is healthy. It is built first if it is not there yet. Stop ends it.
func (c *ControlPlane) StartControllerManager(ctx context.Context, controllers ...string) error {
	if c.controllers != nil {
		return errors.New("the controller manager has been started")
	}
	program, err := build.ControllerManager(ctx)
	if err != nil {
		return err
	}
	client, err := c.trustingClient()
	if err != nil {
		return err
	}
	return ports.Try(1, func(free []int) error {
		service := process.NewService(process.Options{
			Name: "kube-controller-manager",
			Path: program,
			Args: []string{
				"--kubeconfig=" + c.Kubeconfig(),
				"--bind-address=127.0.0.1",
				"--secure-port=" + strconv.Itoa(free[0]),
				"--tls-cert-file=" + c.path("apiserver.crt"),
				"--tls-private-key-file=" + c.path("apiserver.key"),
				"--leader-elect=false",
				"--use-service-account-credentials=true",
				"--service-account-private-key-file=" + c.path("service-account.key"),
				"--root-ca-file=" + c.CAFile(),
				"--controllers=" + strings.Join(controllers, ","),
			},
			Dir: c.dir,
			Log: c.path("controller-manager.log"),
			Ready: func(ctx context.Context) error {
				return expectOK(ctx, client, "https://"+ports.Address(free[0])+"/healthz", "")
			},
		})
		if err := service.Start(ctx); err != nil {
			return errors.Join(err, service.Stop())
		}
		c.controllers = service
		return nil
	})
}
