package config

import (
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// maxKubeconfigBytes bounds what is read as a kubeconfig, in bytes; certificates are in it.
const maxKubeconfigBytes = 4 << 20

// validateKubeconfig looks whether the named file can be what it should be. It contacts no cluster, and never shows the
// file's content, which holds credentials.
func (d *decoder) validateKubeconfig(c Cluster) {
	content, err := readLimited(c.Kubeconfig, maxKubeconfigBytes)
	if err != nil {
		d.addProblem("cluster.kubeconfig", Problem{Message: err.Error(), Expected: "a kubeconfig file"})
		return
	}
	var form struct {
		Kind string `yaml:"kind"`
	}
	if err := yaml.Unmarshal(content, &form); err != nil || form.Kind != "Config" {
		d.addProblem("cluster.kubeconfig", Problem{Message: "not a kubeconfig", Found: "file " + c.Kubeconfig, Expected: `YAML or JSON with "kind: Config"`})
		return
	}
	d.validateContext(c)
}

// validateContext looks whether the context that is going to be used is there, with a cluster, a user and their files. The
// files are those that kubectl takes. Without any of them, and without a context, it is for a Pod's service account.
func (d *decoder) validateContext(c Cluster) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	at, from := "cluster.kubeconfig", c.Kubeconfig
	if from == "" {
		at, from = "cluster", "$KUBECONFIG or ~/.kube/config"
	}
	for _, file := range rules.GetLoadingPrecedence() {
		if _, err := os.Stat(file); c.Kubeconfig == "" && os.IsNotExist(err) {
			continue
		}
		if _, err := readLimited(file, maxKubeconfigBytes); err != nil {
			d.addProblem(at, Problem{Message: err.Error(), Expected: "a kubeconfig file"})
			return
		}
	}
	all, err := rules.Load()
	if err != nil { // not shown: it quotes the file
		d.addProblem(at, Problem{Message: "not a kubeconfig", Found: from})
		return
	}
	want := all.CurrentContext
	if c.Context != "" {
		at, want = "cluster.context", c.Context
	}
	context := all.Contexts[want]
	switch {
	case want == "" && c.Kubeconfig == "":
		return
	case context == nil:
		expected := "one of its contexts (" + strings.Join(slices.Sorted(maps.Keys(all.Contexts)), ", ") + ")"
		if len(all.Contexts) == 0 {
			expected = "a kubeconfig that has it"
		}
		d.addProblem(at, Problem{Message: "no such context in " + from, Found: strconv.Quote(want), Expected: expected})
		return
	}
	d.validateContextEntries(at, want, context, all)
}

// validateContextEntries looks at what a context refers to.
func (d *decoder) validateContextEntries(at, name string, context *api.Context, all *api.Config) {
	cluster, user := all.Clusters[context.Cluster], all.AuthInfos[context.AuthInfo]
	report := func(message string) {
		d.addProblem(at, Problem{Message: "context " + strconv.Quote(name) + ": " + message})
	}
	if cluster == nil {
		report("its cluster " + strconv.Quote(context.Cluster) + " is not there")
		return
	}
	server := cluster.Server
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	if u, err := url.Parse(server); err != nil || u.Hostname() == "" {
		report("its cluster has no server address, https://host:port")
	}
	files := []string{cluster.CertificateAuthority}
	switch {
	case user == nil && context.AuthInfo != "":
		report("its user " + strconv.Quote(context.AuthInfo) + " is not there")
	case user != nil:
		files = append(files, user.ClientCertificate, user.ClientKey, user.TokenFile)
	}
	for _, file := range files {
		if file == "" {
			continue
		}
		if _, err := readLimited(file, maxKubeconfigBytes); err != nil {
			report(err.Error())
		}
	}
}
