package config

import (
	"fmt"
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

// maxKubeconfigBytes bounds the size of a kubeconfig, which may embed certificates.
const maxKubeconfigBytes = 4 << 20

// maxClusterNameBytes bounds the name of a cluster, which is part of every ID and may be part of topics and subjects.
const maxClusterNameBytes = 253

func validateCluster(rep *reporter, c Cluster) {
	p := Problem{Found: strconv.Quote(c.Name), Expected: `a name such as "prod-eu1"`}
	switch {
	case strings.ContainsRune(c.Name, '/'):
		p.Message = `contains a "/", which separates the parts of a change's ID`
	case strings.TrimSpace(c.Name) != c.Name:
		p.Message = "begins or ends with a blank"
	case c.Name == "." || c.Name == "..":
		p.Message = "a name of dots alone, which no topic may have"
	case len(c.Name) > maxClusterNameBytes:
		p.Message, p.Expected = "too long", fmt.Sprintf("at most %d bytes", maxClusterNameBytes)
	}
	if p.Message != "" {
		rep.addProblem("cluster.name", p)
	}
	rep.checkOneOf("cluster.onReplaced", c.OnReplaced, Fail, Fresh)
	if c.Kubeconfig != "" {
		validateKubeconfig(rep, c)
	}
}

// validateKubeconfig checks the configured kubeconfig file. It opens no connection, and never quotes the file, which holds
// credentials.
func validateKubeconfig(rep *reporter, c Cluster) {
	content, err := readLimited(c.Kubeconfig, maxKubeconfigBytes)
	if err != nil {
		rep.addProblem("cluster.kubeconfig", Problem{Message: err.Error(), Expected: "a kubeconfig file"})
		return
	}
	var form struct {
		Kind string `yaml:"kind"`
	}
	if err := yaml.Unmarshal(content, &form); err != nil || form.Kind != "Config" {
		rep.addProblem("cluster.kubeconfig", Problem{Message: "not a kubeconfig", Found: "file " + c.Kubeconfig,
			Expected: `YAML or JSON with "kind: Config"`})
		return
	}
	validateContext(rep, c)
}

// validateContext checks that the selected context exists, with a cluster, a user and their files. The kubeconfig files are
// those that kubectl uses. Without any file and without a context, the Pod's service account is used, which is not checked.
func validateContext(rep *reporter, c Cluster) {
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
			rep.addProblem(at, Problem{Message: err.Error(), Expected: "a kubeconfig file"})
			return
		}
	}
	all, err := rules.Load()
	if err != nil { // not shown, because it quotes the file
		rep.addProblem(at, Problem{Message: "not a kubeconfig", Found: from})
		return
	}
	name := all.CurrentContext
	if c.Context != "" {
		at, name = "cluster.context", c.Context
	}
	context := all.Contexts[name]
	switch {
	case name == "" && c.Kubeconfig == "":
		return
	case context == nil:
		expected := "one of its contexts (" + strings.Join(slices.Sorted(maps.Keys(all.Contexts)), ", ") + ")"
		if len(all.Contexts) == 0 {
			expected = "a kubeconfig that has it"
		}
		rep.addProblem(at, Problem{Message: "no such context in " + from, Found: strconv.Quote(name), Expected: expected})
		return
	}
	validateContextEntries(rep, at, name, context, all)
}

// validateContextEntries checks the cluster, the user and the files of a context.
func validateContextEntries(rep *reporter, at, name string, context *api.Context, all *api.Config) {
	cluster, user := all.Clusters[context.Cluster], all.AuthInfos[context.AuthInfo]
	report := func(message string) {
		rep.addProblem(at, Problem{Message: "context " + strconv.Quote(name) + ": " + message})
	}
	if cluster == nil {
		report("its cluster " + strconv.Quote(context.Cluster) + " does not exist")
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
		report("its user " + strconv.Quote(context.AuthInfo) + " does not exist")
	case user != nil:
		if user.AuthProvider != nil {
			report("its user has auth-provider " + strconv.Quote(user.AuthProvider.Name) + ", which Kubernetes no longer has: replace it by exec, " +
				"as gke-gcloud-auth-plugin (for gcp) and kubelogin (for azure and oidc) do")
		}
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
