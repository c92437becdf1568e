package config

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// longestKubeconfig bounds what is read as a kubeconfig, in bytes; certificates are in it.
const longestKubeconfig = 4 << 20

// kubeconfig is the part of a kubeconfig file (k8s.io/client-go/tools/clientcmd/api/v1) that says which contexts it has.
type kubeconfig struct {
	Kind           string `yaml:"kind"`
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name string `yaml:"name"`
	} `yaml:"contexts"`
}

// validateKubeconfig looks whether the named file can be what it should be. It contacts no cluster, and never shows the
// file's content, which holds credentials.
func (d *decoder) validateKubeconfig(c Cluster) {
	content, err := readLimited(c.Kubeconfig, longestKubeconfig)
	if err != nil {
		d.report("cluster.kubeconfig", Problem{Message: err.Error(), Expected: "a kubeconfig file"})
		return
	}
	var k kubeconfig
	if err := yaml.Unmarshal(content, &k); err != nil || k.Kind != "Config" {
		d.report("cluster.kubeconfig", Problem{Message: "not a kubeconfig", Found: "file " + c.Kubeconfig, Expected: `YAML or JSON with "kind: Config"`})
		return
	}
	var names []string
	for _, context := range k.Contexts {
		names = append(names, context.Name)
	}
	at, want := "cluster.context", c.Context
	if want == "" {
		at, want = "cluster.kubeconfig", k.CurrentContext
	}
	if !slices.Contains(names, want) {
		d.report(at, Problem{Message: "no such context in " + c.Kubeconfig, Found: strconv.Quote(want),
			Expected: "one of its contexts (" + strings.Join(names, ", ") + ")"})
	}
}
