package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// apiServerProcess describes the API server of a name, which its files begin with, on a port.
func (c *ControlPlane) apiServerProcess(name string, port int, program string, options Options) (process.Options, error) {
	args := []string{
		"--etcd-servers=" + c.etcdURL,
		"--etcd-compaction-interval=0",
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--endpoint-reconciler-type=none", // a loopback address may not stand in Endpoints
		"--cert-dir=" + c.dir,
		"--tls-cert-file=" + c.path("apiserver.crt"),
		"--tls-private-key-file=" + c.path("apiserver.key"),
		"--token-auth-file=" + c.path("tokens.csv"),
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.0.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path("service-account.key"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
	}
	if !options.NoAudit {
		args = append(args, c.auditArgs(name)...)
	}
	client, err := c.trustingClient()
	if err != nil {
		return process.Options{}, err
	}
	return process.Options{
		Name:  "kube-" + name,
		Path:  program,
		Args:  append(args, options.APIServerArgs...),
		Env:   append(os.Environ(), options.collection()...),
		Dir:   c.dir,
		Log:   c.path(name + ".log"),
		Ready: func(ctx context.Context) error { return c.apiServerReady(ctx, client, port) },
	}, nil
}

// apiServerReady asks for more than readiness: the system namespaces are created a little later, and a test that
// names one must find it.
func (c *ControlPlane) apiServerReady(ctx context.Context, client *http.Client, port int) error {
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"} {
		if err := expectOK(ctx, client, "https://"+ports.Address(port)+path, c.admin.Token); err != nil {
			return err
		}
	}
	return nil
}

// trustingClient trusts the control plane's CA alone. It keeps no connection, since it is used at the start only.
func (c *ControlPlane) trustingClient() (*http.Client, error) {
	pem, err := os.ReadFile(c.CAFile())
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", c.CAFile())
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}, nil
}
