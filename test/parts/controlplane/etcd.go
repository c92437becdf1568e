package controlplane

import (
	"context"
	"net/http"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

func (c *ControlPlane) etcdProcess(program string, peerPort int, extra []string) process.Options {
	peer := "http://" + ports.Address(peerPort)
	args := []string{
		"--name=etcd",
		"--data-dir=" + c.EtcdDir(),
		"--listen-client-urls=" + c.etcdURL,
		"--advertise-client-urls=" + c.etcdURL,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--quota-backend-bytes=8589934592", // the whole history stays, see the package's comment
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
	return process.Options{
		Name:  "etcd",
		Path:  program,
		Args:  append(args, extra...),
		Log:   c.path("etcd.log"),
		Ready: func(ctx context.Context) error { return process.GetOK(ctx, c.etcdURL+"/readyz") },
	}
}

// expectOK makes a GET request and returns an error unless the answer is 200.
func expectOK(ctx context.Context, client *http.Client, url, token string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return process.ExpectOK(client, request)
}
