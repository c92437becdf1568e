package corpus

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// shape is what makes a Pod large or small.
type shape struct {
	sidecars    int
	environment int // variables per container
	volumes     int
	probes      bool // with all that goes along with them: limits, arguments, tolerations, every condition
	annotations int  // bytes of a sidecar's status annotation
}

var (
	smallShape = shape{}
	largeShape = shape{sidecars: 1, environment: 9, volumes: 3, probes: true, annotations: 640}
)

var applications = []string{"checkout", "payments", "frontend", "catalog", "inventory", "ledger", "gateway", "search", "billing", "notify"}

// Tokens of values that are not strings. They are dates no object has and a number no counter reaches.
var (
	created = metav1.NewTime(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))
	now     = metav1.NewTime(time.Date(1999, 2, 2, 0, 0, 0, 0, time.UTC))
)

const count = 1999333

// marshalPod makes the JSON of a running Pod of a ReplicaSet, with tokens for what differs between its Pods.
func marshalPod(s *stream, shape shape) ([]byte, error) {
	app := applications[s.below(len(applications))]
	replicaSet := app + "-" + string(s.appendHex(nil, 10))
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: podMeta(s, shape, app, replicaSet),
		Spec:       podSpec(s, shape, app),
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, StartTime: &created,
			HostIP: tokens[fieldHostIP], HostIPs: []corev1.HostIP{{IP: tokens[fieldHostIP]}},
			PodIP: tokens[fieldPodIP], PodIPs: []corev1.PodIP{{IP: tokens[fieldPodIP]}},
		},
	}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, containerStatus(c))
	}
	pod.Status.Conditions = podConditions(shape)
	if err := addManagedFields(pod, "kube-controller-manager", "kubelet"); err != nil {
		return nil, err
	}
	return json.Marshal(pod)
}

func podMeta(s *stream, shape shape, app, replicaSet string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name: tokens[fieldName], GenerateName: replicaSet + "-", Namespace: tokens[fieldNamespace],
		UID: types.UID(tokens[fieldUID]), ResourceVersion: tokens[fieldRV], Generation: 1, CreationTimestamp: created,
		Labels: map[string]string{
			"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "shop", "pod-template-hash": replicaSet[len(app)+1:],
		},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: replicaSet, UID: types.UID(s.appendUID(nil)),
			Controller: new(true), BlockOwnerDeletion: new(true),
		}},
	}
	if shape.annotations > 0 {
		m.Labels["app.kubernetes.io/version"] = fmt.Sprintf("v1.%d.%d", s.below(30), s.below(30))
		m.Labels["topology.kubernetes.io/zone"] = "eu-west-1a"
		m.Annotations = map[string]string{
			"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
			"checksum/config":         string(s.appendHex(nil, 64)),
			"sidecar.istio.io/status": sidecarStatus(s, shape.annotations),
		}
	}
	return m
}

// sidecarStatus is JSON inside a JSON string, so that it comes out with every quote escaped, as meshes write it.
func sidecarStatus(s *stream, size int) string {
	text := []byte(`{"initContainers":["istio-init"],"containers":["istio-proxy"],"revision":"default","volumes":[`)
	for len(text) < size {
		text = append(s.appendHex(append(text, `"workload-`...), 8), `",`...)
	}
	return string(append(text, `"istio-token"]}`...))
}

func podSpec(s *stream, shape shape, app string) corev1.PodSpec {
	spec := corev1.PodSpec{
		NodeName: tokens[fieldNode], RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: new(int64(30)),
		DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: app, DeprecatedServiceAccount: app,
		SchedulerName: "default-scheduler", EnableServiceLinks: new(true), SecurityContext: &corev1.PodSecurityContext{},
		Priority: new(int32(0)), PreemptionPolicy: new(corev1.PreemptLowerPriority),
	}
	if shape.probes {
		spec.Tolerations = []corev1.Toleration{toleration("not-ready"), toleration("unreachable")}
	}
	for i := range shape.volumes {
		spec.Volumes = append(spec.Volumes, volume(app, i))
	}
	spec.Volumes = append(spec.Volumes, tokenVolume())
	spec.Containers = append(spec.Containers, container(s, shape, app))
	for i := range shape.sidecars {
		spec.Containers = append(spec.Containers, container(s, shape, fmt.Sprintf("sidecar-%d", i+1)))
	}
	return spec
}

func toleration(key string) corev1.Toleration {
	return corev1.Toleration{
		Key: "node.kubernetes.io/" + key, Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300)),
	}
}

const tokenMount = "kube-api-access-x7k2p"

func volume(app string, i int) corev1.Volume {
	v := corev1.Volume{Name: fmt.Sprintf("vol-%d", i)}
	switch i % 3 {
	case 0:
		v.ConfigMap = &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: app + "-config"}, DefaultMode: new(int32(420)),
		}
	case 1:
		v.Secret = &corev1.SecretVolumeSource{SecretName: app + "-tls", DefaultMode: new(int32(420))}
	default:
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	return v
}

// tokenVolume is the projected service account token that admission adds to every Pod.
func tokenVolume() corev1.Volume {
	return corev1.Volume{Name: tokenMount, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(420)),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}}}
}

func container(s *stream, shape shape, name string) corev1.Container {
	c := corev1.Container{
		Name:            name,
		Image:           fmt.Sprintf("registry.example.com/team-%d/%s:v1.%d.%d", s.below(9), name, s.below(30), s.below(30)),
		ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log",
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		Ports:                    []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
		}},
	}
	for i := range shape.environment {
		c.Env = append(c.Env, variable(s, i))
	}
	for i := range shape.volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
			Name: fmt.Sprintf("vol-%d", i), MountPath: fmt.Sprintf("/var/lib/app/vol-%d", i), ReadOnly: i%2 == 0,
		})
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
		Name: tokenMount, ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount",
	})
	if shape.probes {
		c.Args = []string{"--config=/etc/app/config.yaml", "--log-format=json"}
		c.Resources.Limits = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("512Mi"),
		}
		c.LivenessProbe, c.ReadinessProbe = probe("/healthz"), probe("/readyz")
		c.SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
	}
	return c
}

func variable(s *stream, i int) corev1.EnvVar {
	switch i % 4 {
	case 0:
		return corev1.EnvVar{Name: fmt.Sprintf("POD_NAME_%d", i), ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"},
		}}
	case 1:
		return corev1.EnvVar{Name: fmt.Sprintf("DB_PASSWORD_%d", i), ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "db-credentials"}, Key: "password",
			},
		}}
	default:
		host := applications[s.below(len(applications))]
		return corev1.EnvVar{
			Name:  fmt.Sprintf("APP_SETTING_%d", i),
			Value: fmt.Sprintf("http://%s.shop.svc.cluster.local:8080/%s", host, s.appendHex(nil, 6)),
		}
	}
}

func probe(path string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: intstr.FromString("http"), Scheme: corev1.URISchemeHTTP,
		}},
		InitialDelaySeconds: 10, TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
	}
}

func containerStatus(c corev1.Container) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: c.Name, Ready: true, RestartCount: count, Started: new(true), Image: c.Image,
		ImageID:     c.Image + "@sha256:" + tokens[fieldDigest],
		ContainerID: "containerd://" + tokens[fieldDigest],
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}
}

// podConditions are those of a running Pod, of a small one only the ones that matter.
func podConditions(shape shape) []corev1.PodCondition {
	settled := []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, "PodReadyToStartContainers"}
	if !shape.probes {
		settled = settled[:1]
	}
	var conditions []corev1.PodCondition
	for _, t := range settled {
		conditions = append(conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: created})
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		status := corev1.ConditionStatus(tokens[fieldReady])
		conditions = append(conditions, corev1.PodCondition{Type: t, Status: status, LastTransitionTime: now})
	}
	return conditions
}
