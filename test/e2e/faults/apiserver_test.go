package faults

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

func (c *fixture) apiAway() func() {
	p := c.proxied()
	c.start()
	p.Block()
	return p.Unblock
}

func (c *fixture) apiNeverThere() func() {
	p := c.proxied()
	p.Block()
	c.launch()
	return p.Unblock
}

// apiHangs lets connections open and nothing come through them.
func (c *fixture) apiHangs() func() {
	p := c.proxied()
	c.start()
	p.Ration(1)
	p.Cut()
	return func() {
		p.Ration(0)
		p.Cut()
	}
}

func (c *fixture) tokenRefused() func() {
	file := c.write("token", "of-nobody")
	config, err := clientcmd.LoadFromFile(c.settings.Kubeconfig)
	c.must(err)
	for _, user := range config.AuthInfos {
		user.Token, user.TokenFile = "", file
	}
	c.settings.Kubeconfig = filepath.Join(c.settings.Dir, "kubeconfig")
	c.must(clientcmd.WriteToFile(*config, c.settings.Kubeconfig))
	c.launch()
	return nil // the file is read again after a minute
}

func (c *fixture) typeSick() func() {
	c.watch("configmaps", "secrets")
	g := c.behind()
	c.start()
	heal := g.Fault(func(r proxy.Request) bool { return r.Resource == "secrets" }, func(w http.ResponseWriter, _ *http.Request) {
		proxy.Status(w, http.StatusServiceUnavailable, "ServiceUnavailable", "out of order")
	})
	g.Cut()
	return heal
}

// typeForbidden has an account that may read two types, and then one.
func (c *fixture) typeForbidden() func() {
	c.watch("configmaps", "secrets")
	namespaces := workload.Kind{Resource: secrets.Resource.GroupVersion().WithResource("namespaces")}
	c.must(c.cluster.Allow(c.t.Context(), c.name, "reader", workload.ConfigMaps, namespaces))
	c.must(c.cluster.Allow(c.t.Context(), c.name+"-secrets", "reader", secrets))
	revoke := func(ctx context.Context) error { return c.cluster.Revoke(ctx, c.name+"-secrets", "reader", secrets) }
	c.t.Cleanup(func() { check(c.t, revoke(context.WithoutCancel(c.t.Context()))) })
	var err error
	c.settings.Kubeconfig, err = c.controlPlane.KubeconfigFor("reader")
	c.must(err)
	p := c.proxied()
	c.start()
	c.must(revoke(c.t.Context()))
	p.Cut() // else a watch that is open goes on
	return func() { c.must(c.cluster.Allow(c.t.Context(), c.name+"-secrets", "reader", secrets)) }
}

func (c *fixture) typeNotServed() func() {
	c.watch("configmaps", "gadgets.example.com")
	c.t.Cleanup(func() { check(c.t, c.cluster.Undefine(context.WithoutCancel(c.t.Context()), "example.com", "gadgets")) })
	c.start()
	return func() { c.must(c.cluster.Define(c.t.Context(), "example.com", "gadgets", "Gadget")) }
}

// namespaceMissing names a namespace that comes later; what is in it then arrives.
func (c *fixture) namespaceMissing() func() {
	later := c.name + "-later"
	c.watch("configmaps")
	c.settings.Resources[0]["namespaces"] = mapping{"include": []string{c.name, later}}
	c.start()
	return func() {
		c.must(c.cluster.CreateNamespace(c.t.Context(), later))
		c.must(c.cluster.Create(c.t.Context(), workload.ConfigMaps, later, "the-first"))
		c.await("the first object of the new namespace", func() string {
			text, err := os.ReadFile(c.settings.File)
			c.must(err)
			if !strings.Contains(string(text), `"the-first"`) {
				return "nothing"
			}
			return ""
		})
	}
}

// unchecked has an account that may read the type, and not the namespace that identifies the cluster.
func (c *fixture) unchecked() func() {
	g := c.behind()
	g.Fault(asksWhichCluster, func(w http.ResponseWriter, _ *http.Request) {
		proxy.Status(w, http.StatusForbidden, "Forbidden", `namespaces "kube-system" is forbidden`)
	})
	c.start()
	return nil
}

// anotherCluster answers the question which cluster this is as another one would, as soon as the connections are lost.
func (c *fixture) anotherCluster() func() {
	c.alone()
	g := c.behind()
	c.start()
	g.Fault(asksWhichCluster, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","uid":"11111111-2222-3333-4444-555555555555","resourceVersion":"1"}}`))
	})
	g.Cut()
	return nil
}

func asksWhichCluster(r proxy.Request) bool { return r.Path == "/api/v1/namespaces/kube-system" }

// clockOff lets the API server's answers carry a date that is an hour ago.
func (c *fixture) clockOff() func() {
	g := c.behind()
	heal := g.Fault(func(proxy.Request) bool { return true }, func(w http.ResponseWriter, r *http.Request) {
		g.Pass(&dated{w, -time.Hour}, r)
	})
	c.start()
	return func() {
		heal()
		g.Cut()
	}
}

// dated is an answer with a wrong date.
type dated struct {
	http.ResponseWriter
	off time.Duration
}

func (d *dated) WriteHeader(code int) {
	d.Header().Set("Date", time.Now().Add(d.off).UTC().Format(http.TimeFormat))
	d.ResponseWriter.WriteHeader(code)
}

// Unwrap lets a response controller flush.
func (d *dated) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// otherAuthority does not know the authority of the API server.
func (c *fixture) otherAuthority() func() {
	config, err := clientcmd.LoadFromFile(c.settings.Kubeconfig)
	c.must(err)
	for _, cluster := range config.Clusters {
		cluster.CertificateAuthorityData, cluster.CertificateAuthority = certificates.New(c.t).PEM, ""
	}
	c.settings.Kubeconfig = filepath.Join(c.settings.Dir, "kubeconfig")
	c.must(clientcmd.WriteToFile(*config, c.settings.Kubeconfig))
	c.launch()
	return nil
}

// everythingAnswers has an API server that answers every request like this from one moment on.
func (c *fixture) everythingAnswers(code int, reason string) func() {
	g := c.behind()
	c.start()
	heal := g.Fault(func(proxy.Request) bool { return true }, func(w http.ResponseWriter, _ *http.Request) {
		proxy.Status(w, code, reason, "by the test")
	})
	g.Cut()
	return heal
}

func (c *fixture) apiBusy() func() {
	return c.everythingAnswers(http.StatusTooManyRequests, "TooManyRequests")
}

func (c *fixture) tokenRevoked() func() {
	return c.everythingAnswers(http.StatusUnauthorized, "Unauthorized")
}

func (c *fixture) apiFails() func() {
	return c.everythingAnswers(http.StatusInternalServerError, "InternalError")
}

func (c *fixture) wildcardUnmatched() func() {
	c.watch("configmaps", "*.nobody.example.com")
	c.start()
	return nil
}

// redactionUnmatched has a path that no type of the rule has.
func (c *fixture) redactionUnmatched() func() {
	c.settings.Resources[0]["redact"], c.settings.Resources[0]["redactPaths"] = "mask", []string{"data.secret", "spec.secret"}
	c.start()
	return nil
}

func (c *fixture) redactionHeld() func() {
	c.settings.Resources[0]["redact"], c.settings.Resources[0]["redactPaths"] = "mask", []string{"data.secret", "spec.secret"}
	c.settings.Redaction = mapping{"strict": true}
	c.launch()
	return nil
}
