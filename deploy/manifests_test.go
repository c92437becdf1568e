package deploy_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubecdc/kubecdc/internal/config"
)

const base = "kustomize/base"

// manifest is one object, as it is in its file.
type manifest struct {
	file       string
	text       []byte
	Kind       string `yaml:"kind"`
	APIVersion string `yaml:"apiVersion"`
	Meta       struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
}

// manifests reads what kustomization.yaml in a directory lists, in its order. It uses no generator and no patch, so that the
// files are what kubectl applies.
func manifests(t *testing.T, dir, kind string) []manifest {
	t.Helper()
	var k struct {
		Kind      string         `yaml:"kind"`
		Resources []string       `yaml:"resources"`
		Other     map[string]any `yaml:",inline"`
	}
	readIn(t, dir, "kustomization.yaml", &k)
	delete(k.Other, "apiVersion")
	if k.Kind != kind || len(k.Resources) == 0 || len(k.Other) > 0 {
		t.Fatalf("%s: %s with resources %v; what this test does not render: %v", dir, k.Kind, k.Resources, k.Other)
	}
	var all []manifest
	for _, file := range k.Resources {
		m := manifest{file: file}
		m.text = readIn(t, dir, file, &m)
		all = append(all, m)
	}
	return all
}

// read decodes one file of the base and returns its text.
func read(t *testing.T, file string, into any) []byte {
	t.Helper()
	return readIn(t, base, file, into)
}

// readIn decodes one file, which holds one document, and returns its text.
func readIn(t *testing.T, dir, file string, into any) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("\n---")) {
		t.Fatalf("%s: more than one document", file)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return text
}

// loaded is the configuration in the ConfigMap.
func loaded(t *testing.T) *config.Config {
	t.Helper()
	var m configMap
	read(t, "configmap.yaml", &m)
	return loadedFrom(t, m.Data["config.yaml"])
}

// labelled is a StatefulSet as far as labels and annotations are concerned.
type labelled struct {
	Meta objectMeta `yaml:"metadata"`
	Spec struct {
		Template struct {
			Meta objectMeta `yaml:"metadata"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

type objectMeta struct {
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// statefulSet is the part of the StatefulSet that must fit the configuration.
type statefulSet struct {
	Spec struct {
		Replicas int `yaml:"replicas"`
		Template struct {
			Spec struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Image string   `yaml:"image"`
					Args  []string `yaml:"args"`
					Env   []struct {
						Name string `yaml:"name"`
						From struct {
							Secret struct {
								Name     string `yaml:"name"`
								Key      string `yaml:"key"`
								Optional bool   `yaml:"optional"`
							} `yaml:"secretKeyRef"`
						} `yaml:"valueFrom"`
					} `yaml:"env"`
					Ports []struct {
						Port string `yaml:"containerPort"`
					} `yaml:"ports"`
					Mounts []struct {
						Name string `yaml:"name"`
						Path string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				} `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
		Claims []struct {
			Spec struct {
				Resources struct {
					Requests struct {
						Storage string `yaml:"storage"`
					} `yaml:"requests"`
				} `yaml:"resources"`
			} `yaml:"spec"`
		} `yaml:"volumeClaimTemplates"`
	} `yaml:"spec"`
}

func TestThePodFitsItsConfiguration(t *testing.T) {
	cfg := loaded(t)
	var set statefulSet
	read(t, "statefulset.yaml", &set)
	pod := set.Spec.Template.Spec
	container := pod.Containers[0]
	mounts := map[string]string{}
	for _, m := range container.Mounts {
		mounts[m.Name] = m.Path
	}
	if set.Spec.Replicas != 1 {
		t.Errorf("%d replicas share one journal", set.Spec.Replicas)
	}
	if want := []string{"run", "--config", mounts["config"] + "/config.yaml"}; !slices.Equal(container.Args, want) {
		t.Errorf("args %q, want %q", container.Args, want)
	}
	if cfg.Journal.Dir != mounts["journal"] {
		t.Errorf("journal.dir is %q and the volume is at %q", cfg.Journal.Dir, mounts["journal"])
	}
	volume, err := resource.ParseQuantity(set.Spec.Claims[0].Spec.Resources.Requests.Storage)
	if err != nil {
		t.Fatal(err)
	}
	// The formula of docs/sizing.md. values.yaml is held to the base by another test.
	if needs := cfg.Journal.MaxBytes + cfg.Journal.MaxBytes/4 + cfg.Journal.Reserve; volume.Value() < int64(needs) {
		t.Errorf("journal.maxBytes %s and reserve %s need a volume of %s, it has %s", cfg.Journal.MaxBytes, cfg.Journal.Reserve, needs, volume.String())
	}
	if grace := time.Duration(pod.Grace) * time.Second; grace < cfg.Delivery.DrainTimeout+10*time.Second {
		t.Errorf("the Pod is killed after %v, while delivery.drainTimeout is %v", grace, cfg.Delivery.DrainTimeout)
	}
	if !strings.HasSuffix(cfg.Admin.Listen, ":"+container.Ports[0].Port) {
		t.Errorf("admin.listen %q is not on port %s", cfg.Admin.Listen, container.Ports[0].Port)
	}
}

// TestTheRedactionKeyComesFromASecretThatNeedNotExist: the base starts without one, and uses the one that its comment makes
// how to make.
func TestTheRedactionKeyComesFromASecretThatNeedNotExist(t *testing.T) {
	var set statefulSet
	text := read(t, "statefulset.yaml", &set)
	if without := loaded(t); without.Redaction.Key != "" {
		t.Errorf("the ConfigMap holds the key")
	}
	for _, env := range set.Spec.Template.Spec.Containers[0].Env {
		if env.Name != config.EnvironmentName("redaction.key") {
			continue
		}
		from := env.From.Secret
		if from.Name == "" || from.Key == "" || !from.Optional {
			t.Errorf("%+v", env)
		}
		if command := "create secret generic " + from.Name + " --from-literal=" + from.Key + "="; !bytes.Contains(text, []byte(command)) {
			t.Errorf("nothing says %q", command)
		}
		t.Setenv(env.Name, rand.Text()+rand.Text()) // as random as what openssl rand -hex 32 writes
		if with := loaded(t); with.Redaction.Key == "" {
			t.Errorf("%s does not reach redaction.key", env.Name)
		}
		return
	}
	t.Error("the Pod is given no key")
}

// TestNobodyElseCanOwnTheImage: a name that is free in a public registry would run the image of anyone registering it.
func TestNobodyElseCanOwnTheImage(t *testing.T) {
	var set statefulSet
	read(t, "statefulset.yaml", &set)
	image := set.Spec.Template.Spec.Containers[0].Image
	host, _, _ := strings.Cut(image, "/")
	if !strings.HasSuffix(host, ".invalid") && !strings.Contains(image, "@sha256:") {
		t.Errorf("image %s is neither in a domain that cannot be registered nor named by its digest", image)
	}
}

// TestTheDocumentedLineNamesTheImage runs the one line of the page that sets the image of the base.
func TestTheDocumentedLineNamesTheImage(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`kubectl kustomize deploy/kustomize/base \| sed 's\|(.*)\|(.*)\|' \| kubectl apply -f -`).FindSubmatch(page)
	if line == nil {
		t.Fatal("the page has no such line")
	}
	var set statefulSet
	one(t, split(t, strings.ReplaceAll(kustomize(t, "build", base), string(line[1]), string(line[2]))), "StatefulSet", &set)
	if image := set.Spec.Template.Spec.Containers[0].Image; image != string(line[2]) {
		t.Errorf("image %s, want %s", image, line[2])
	}
}

// TestOnlyMetricsAreReachable holds the NetworkPolicy to the Pod: it selects it, and opens the admin port alone.
func TestOnlyMetricsAreReachable(t *testing.T) {
	var policy struct {
		Spec struct {
			Pods struct {
				Labels map[string]string `yaml:"matchLabels"`
			} `yaml:"podSelector"`
			Types   []string `yaml:"policyTypes"`
			Ingress []struct {
				From  []map[string]any `yaml:"from"`
				Ports []struct {
					Port string `yaml:"port"`
				} `yaml:"ports"`
			} `yaml:"ingress"`
		} `yaml:"spec"`
	}
	var set labelled
	read(t, "networkpolicy.yaml", &policy)
	read(t, "statefulset.yaml", &set)
	for key, value := range policy.Spec.Pods.Labels {
		if set.Spec.Template.Meta.Labels[key] != value {
			t.Errorf("the Pod has no label %s=%s", key, value)
		}
	}
	in := policy.Spec.Ingress
	if len(policy.Spec.Pods.Labels) == 0 || !slices.Contains(policy.Spec.Types, "Ingress") || len(in) != 1 || len(in[0].From) == 0 ||
		len(in[0].Ports) != 1 || in[0].Ports[0].Port != "admin" {
		t.Errorf("%+v", policy.Spec)
	}
}

// rule is one rule of a ClusterRole.
type rule struct {
	Groups    []string `yaml:"apiGroups" json:"apiGroups"`
	Resources []string `yaml:"resources" json:"resources"`
	Names     []string `yaml:"resourceNames" json:"resourceNames"`
	Verbs     []string `yaml:"verbs" json:"verbs"`
}

// rights spells rules out, one right a line: "apps/deployments list".
func rights(rules []rule) []string {
	var all []string
	for _, r := range rules {
		names := r.Names
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range r.Groups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					for _, name := range names {
						all = append(all, strings.TrimSpace(group+"/"+resource+" "+verb+" "+name))
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// needed are the rights that the configuration calls for, and no more.
func needed(cfg *config.Config) []string {
	all := []string{"/namespaces get kube-system"}
	for _, r := range cfg.Resources {
		for _, name := range r.Select {
			resource, group, _ := strings.Cut(name, ".")
			all = append(all, group+"/"+resource+" list", group+"/"+resource+" watch")
			if cfg.Redaction.Strict && len(r.RedactPaths) > 0 && strings.Contains(group, ".") {
				all = append(all, "apiextensions.k8s.io/customresourcedefinitions get "+name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// TestTheImageHasNoRootAndNoShell reads the Dockerfile; building it takes Docker, which these tests do not.
func TestTheImageHasNoRootAndNoShell(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, final, ok := strings.Cut(string(text), "\nFROM gcr.io/distroless/static-debian12:nonroot\n")
	if !ok || strings.Contains(final, "\nFROM ") {
		t.Fatal("the last stage is not distroless static, nonroot")
	}
	for _, line := range []string{"USER 65532:65532", `ENTRYPOINT ["/exporter"]`, `CMD ["run", "--config", "/etc/kubecdc/config.yaml"]`, "EXPOSE 8080"} {
		if !strings.Contains(final, "\n"+line+"\n") {
			t.Errorf("the last stage has no line %s", line)
		}
	}
	for _, part := range []string{"CGO_ENABLED=0", "-trimpath", "-X main.version=$VERSION"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the build has no %s", part)
		}
	}
}
