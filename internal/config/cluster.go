package config

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"
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
	rep.refuseIf(p.Message != "", "cluster.name", p)
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

// State configures the replicated state.
type State struct {
	// A sink of kafka or nats, with the state in its bus. Empty: no state.
	Sink string `mapstructure:"sink"`
	// Kafka topic or NATS stream of the state, of this exporter and its standbys alone.
	Name string `mapstructure:"name"`
}

// Enabled reports whether a replicated state is configured.
func (s State) Enabled() bool { return s.Sink != "" }

// Election configures the choice of the active exporter.
type Election struct {
	// The Lease that the exporters compete for, namespace/name. Empty: this exporter is active at once.
	Lease string `mapstructure:"lease"`
	// Another exporter takes over when the Lease was not renewed for so long: whole seconds, at most 24h.
	Duration time.Duration `mapstructure:"duration"`
	// An active exporter that has not reached a destination for so long yields to a standby that reaches it.
	YieldAfter time.Duration `mapstructure:"yieldAfter"`
	// Identity in the Lease, different for each exporter. Empty: $POD_NAME, else the host's name and a random word.
	Identity string `mapstructure:"identity"`
}

// Enabled reports whether exporters compete for a Lease.
func (e Election) Enabled() bool { return e.Lease != "" }

// NamespacedName returns the namespace and the name of the Lease.
func (e Election) NamespacedName() (namespace, name string) {
	namespace, name, _ = strings.Cut(e.Lease, "/")
	return namespace, name
}

// maxLease bounds the time in which no exporter is active.
const maxLease = 24 * time.Hour

// validateState checks that the state has a bus and a name that is valid there.
func validateState(rep *reporter, c *Config) {
	if !c.State.Enabled() {
		return
	}
	expected := "the name of a sink of kafka or nats"
	if able := stateSinkNames(c.Sinks); len(able) > 0 {
		expected += ": " + strings.Join(able, ", ")
	}
	p := Problem{Found: strconv.Quote(c.State.Sink), Expected: expected}
	i := slices.IndexFunc(c.Sinks, func(s Sink) bool { return s.Name == c.State.Sink })
	switch {
	case i < 0:
		p.Message = "no sink has this name"
	case !c.Sinks[i].supportsState():
		p.Message = "this sink cannot keep a state"
	default:
		validateStateName(rep, c.State.Name, c.Sinks[i])
		return
	}
	rep.addProblem("state.sink", p)
}

// supportsState reports whether the bus of the sink can keep a state.
func (s Sink) supportsState() bool { return s.Kafka != nil || s.NATS != nil }

// stateSinkNames returns the names of the sinks that can keep a state.
func stateSinkNames(sinks []Sink) (names []string) {
	for _, s := range sinks {
		if s.supportsState() && s.Name != "" {
			names = append(names, s.Name)
		}
	}
	return names
}

// maxStateNameLength leaves space for suffixes within the limits of 249 bytes for a topic and 255 for a stream.
const maxStateNameLength = 200

// validateStateName checks the name of the topic or stream of the state.
func validateStateName(rep *reporter, name string, in Sink) {
	allowed, what := func(b byte) bool { return isStreamByte(b) || b == '.' }, "a topic: letters, digits, \".\", \"_\" and \"-\""
	isUsed := func() bool { return in.Kafka.Topic == name }
	if in.NATS != nil {
		allowed, what = isStreamByte, "a stream: letters, digits, \"_\" and \"-\""
		isUsed = func() bool { return in.NATS.StreamName() == name }
	}
	p := Problem{Found: strconv.Quote(name), Expected: "the name of " + what}
	switch {
	case name == "":
		p.Message = "is empty"
	case len(name) > maxStateNameLength:
		p.Message = fmt.Sprintf("longer than %d bytes", maxStateNameLength)
	case strings.IndexFunc(name, func(r rune) bool { return r > 127 || !allowed(byte(r)) }) >= 0:
		p.Message = "contains a character that is not allowed"
	case isUsed():
		p.Message, p.Expected = "changes are written there", "a name of its own"
	default:
		return
	}
	rep.addProblem("state.name", p)
}

func isStreamByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

func validateElection(rep *reporter, c *Config) {
	e := c.Election
	if !e.Enabled() {
		rep.refuseIf(e.Identity != "", "election.identity",
			Problem{Message: "has no effect without election.lease", Found: strconv.Quote(e.Identity)})
		return
	}
	rep.refuseIf(!c.State.Enabled(), "election.lease",
		Problem{Message: "needs state.sink: without a replicated state, a new active exporter does not know what was emitted",
			Found: strconv.Quote(e.Lease), Expected: "state.sink, or no election.lease"})
	namespace, name := e.NamespacedName()
	rep.refuseIf(len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0, "election.lease",
		Problem{Message: "not the namespace and name of a Lease", Found: strconv.Quote(e.Lease), Expected: `namespace/name, such as "kubecdc/exporter"`})
	rep.refuseIf(e.Duration < time.Second || e.Duration%time.Second != 0, "election.duration",
		Problem{Message: "not whole seconds", Found: e.Duration.String(), Expected: "at least 1s, in whole seconds"})
	rep.refuseIf(e.Duration > maxLease, "election.duration",
		Problem{Message: "too long: nothing is emitted until another exporter takes over", Found: e.Duration.String(),
			Expected: "at most " + maxLease.String()})
	rep.refuseIf(e.YieldAfter < time.Second, "election.yieldAfter",
		Problem{Message: "too short", Found: e.YieldAfter.String(), Expected: "at least 1s"})
	if strings.ContainsFunc(e.Identity, func(r rune) bool { return r <= ' ' }) {
		rep.addProblem("election.identity", Problem{Message: "contains blanks", Found: strconv.Quote(e.Identity), Expected: "a word, such as the name of the Pod"})
	}
}
