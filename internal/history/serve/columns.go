package serve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

const (
	none    = "<none>"
	unknown = "<unknown>"

	name      = "Name=metadata.name "
	age       = " Age=since(metadata.creationTimestamp)|<unknown>"
	container = " Containers*=names(spec.template.spec.containers) Images*=images(spec.template.spec.containers)"
	selected  = container + " Selector*=selector(spec.selector)"
)

// printers has the columns of the types that kubectl shows most, as the API server has them: HEADER=CELL. A header with "*"
// is shown with -o wide only, one with "#" is of integers and one with "?" of booleans; "_" stands for a space. A cell is a
// function of a path, or a path and what stands for no value.
var printers = map[string]string{
	"pods": "Name Ready Status Restarts Age IP* Node* Nominated_Node* Readiness_Gates*",
	"deployments.apps": name + "Ready=ready() Up-to-date=number(status.updatedReplicas) Available=number(status.availableReplicas)" +
		age + selected,
	"replicasets.apps": name + "Desired#=number(spec.replicas) Current#=number(status.replicas) Ready#=number(status.readyReplicas)" +
		age + selected,
	"statefulsets.apps": name + "Ready=ready()" + age + container,
	"daemonsets.apps": name + "Desired#=number(status.desiredNumberScheduled) Current#=number(status.currentNumberScheduled) " +
		"Ready#=number(status.numberReady) Up-to-date#=number(status.updatedNumberScheduled) " +
		"Available#=number(status.numberAvailable) Node_Selector=labels(spec.template.spec.nodeSelector)" + age + selected,
	"jobs.batch": name + "Status=job() Completions=completions() Duration=duration()" + age + selected,
	"cronjobs.batch": name + "Schedule=spec.schedule Timezone=spec.timeZone|<none> Suspend?=boolean(spec.suspend) " +
		"Active#=size(status.active) Last_Schedule=since(status.lastScheduleTime)|<none>" + age +
		strings.ReplaceAll(selected, "(spec.", "(spec.jobTemplate.spec."),
	"services": name + "Type=spec.type Cluster-IP=first(spec.clusterIPs)|<none> External-IP=external() Port(s)=ports()|<none>" + age +
		" Selector*=labels(spec.selector)",
	"configmaps":      name + "Data=data()" + age,
	"secrets":         name + "Type=type Data=size(data)" + age,
	"namespaces":      name + "Status=status.phase" + age,
	"serviceaccounts": name + age,
	"nodes": name + "Status=node() Roles=roles()|<none>" + age + " Version=status.nodeInfo.kubeletVersion Internal-IP*=address(InternalIP)|<none> " +
		"External-IP*=address(ExternalIP)|<none> OS-Image*=status.nodeInfo.osImage|<unknown> Kernel-Version*=kernel() " +
		"Container-Runtime*=status.nodeInfo.containerRuntimeVersion|<unknown>",
	"events": "Last_Seen Type Reason Object Subobject* Source* Message First_Seen* Count* Name*",
	"ingresses.networking.k8s.io": name + "Class=spec.ingressClassName|<none> Hosts=hosts() Address=balancers() " +
		"Ports=doors(spec.tls)" + age,
	"persistentvolumes": name + "Capacity=quantity(spec.capacity.storage) Access_Modes=modes(spec.accessModes) " +
		"Reclaim_Policy=spec.persistentVolumeReclaimPolicy Status=phase() Claim=claim(spec.claimRef) StorageClass=class() " +
		"VolumeAttributesClass=spec.volumeAttributesClassName|<unset> Reason=status.reason" + age + " VolumeMode*=spec.volumeMode|<unset>",
	"persistentvolumeclaims": name + "Status=phase() Volume=spec.volumeName Capacity=bound(status.capacity.storage) " +
		"Access_Modes=bound(status.accessModes) StorageClass=class() VolumeAttributesClass=spec.volumeAttributesClassName|<unset>" +
		age + " VolumeMode*=spec.volumeMode|<unset>",
}

// functions make cells of a path.
var functions = map[string]func(o *content, path string) any{
	"number":    func(o *content, path string) any { return number(o.get(path)) },
	"since":     func(o *content, path string) any { return o.since(o.text(path)) },
	"size":      func(o *content, path string) any { return len(o.list(path)) + members(o.get(path)) },
	"data":      func(o *content, _ string) any { return members(o.get("data")) + members(o.get("binaryData")) },
	"labels":    func(o *content, path string) any { return labels.FormatLabels(texts(o.get(path))) },
	"names":     func(o *content, path string) any { return strings.Join(o.each(path, "name"), ",") },
	"images":    func(o *content, path string) any { return strings.Join(o.each(path, "image"), ",") },
	"balancers": func(o *content, _ string) any { return strings.Join(o.balancers(), ",") },
	"external":  func(o *content, _ string) any { return o.external() },
	"hosts":     func(o *content, _ string) any { return o.hosts() },
	"job":       func(o *content, _ string) any { return o.job() },
	"first":     func(o *content, path string) any { return append(o.list(path), nil)[0].Text() },
	"ready": func(o *content, _ string) any {
		return fmt.Sprintf("%d/%d", number(o.get("status.readyReplicas")), number(o.get("spec.replicas")))
	},
	"selector": func(o *content, path string) any {
		var s *metav1.LabelSelector
		if raw := o.get(path); raw != nil && json.Unmarshal(raw, &s) != nil {
			return "<error>"
		}
		return metav1.FormatLabelSelector(s)
	},
	"boolean": func(o *content, path string) any {
		return map[string]string{"": "<unset>", "true": "True", "false": "False"}[string(o.get(path))]
	},
	"completions": func(o *content, _ string) any {
		of := string(o.get("spec.completions"))
		if parallel := number(o.get("spec.parallelism")); of == "" && parallel > 1 {
			of = fmt.Sprintf("1 of %d", parallel)
		}
		return fmt.Sprintf("%d/%s", number(o.get("status.succeeded")), cmp.Or(of, "1"))
	},
	"duration": func(o *content, _ string) any {
		until := *o
		if end, err := time.Parse(time.RFC3339, o.text("status.completionTime")); err == nil {
			until.now = end
		}
		return until.since(o.text("status.startTime"))
	},
	"ports": func(o *content, _ string) any {
		var all []string
		for _, p := range o.list("spec.ports") {
			port := string(p.Get("port"))
			if to := number(p.Get("nodePort")); to > 0 {
				port += ":" + strconv.FormatInt(to, 10)
			}
			all = append(all, port+"/"+p.Get("protocol").Text())
		}
		return strings.Join(all, ",")
	},
	"doors": func(o *content, path string) any { return "80" + strings.Repeat(", 443", min(1, len(o.list(path)))) },
	"node": func(o *content, _ string) any {
		status := map[string]string{"": "Unknown", "True": "Ready"}
		text := cmp.Or(status[o.condition("Ready")], "NotReady")
		if o.isTrue("spec.unschedulable") {
			text += ",SchedulingDisabled"
		}
		return text
	},
	"roles": func(o *content, _ string) any {
		roles := map[string]bool{}
		for label, value := range texts(o.get("metadata.labels")) {
			if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok {
				roles[role] = true
			} else if label == "kubernetes.io/role" {
				roles[value] = true
			}
		}
		delete(roles, "")
		return strings.Join(slices.Sorted(maps.Keys(roles)), ",")
	},
	"address": func(o *content, kind string) any {
		for _, a := range o.list("status.addresses") {
			if a.Get("type").Text() == kind {
				return a.Get("address").Text()
			}
		}
		return ""
	},
	"kernel": func(o *content, _ string) any {
		arch := " (" + o.text("status.nodeInfo.architecture") + ")"
		return cmp.Or(o.text("status.nodeInfo.kernelVersion"), unknown) + strings.TrimSuffix(arch, " ()")
	},
	"quantity": func(o *content, path string) any { return o.quantity(path) },
	"modes":    func(o *content, path string) any { return o.modes(path) },
	"bound": func(o *content, path string) any {
		switch {
		case o.text("spec.volumeName") == "":
			return ""
		case strings.HasSuffix(path, "accessModes"):
			return o.modes(path)
		}
		return o.quantity(path)
	},
	"phase": func(o *content, _ string) any {
		if o.get("metadata.deletionTimestamp") != nil {
			return "Terminating"
		}
		return o.text("status.phase")
	},
	"claim": func(o *content, path string) any {
		return strings.TrimSuffix(o.text(path+".namespace")+"/"+o.text(path+".name"), "/")
	},
	"class": func(o *content, _ string) any {
		if class, ok := texts(o.get("metadata.annotations"))["volume.beta.kubernetes.io/storage-class"]; ok {
			return class
		}
		return o.text("spec.storageClassName")
	},
}

// parseColumns returns the headers of a text, and what makes the cells.
func parseColumns(text string) (headers []metav1.TableColumnDefinition, cells func(*content) []any) {
	var makers []func(*content) any
	for one := range strings.FieldsSeq(text) {
		header, cell, _ := strings.Cut(one, "=")
		c := metav1.TableColumnDefinition{Name: strings.ReplaceAll(strings.TrimRight(header, "*#?"), "_", " "), Type: "string"}
		switch header[len(header)-1] {
		case '*':
			c.Priority = 1
		case '#':
			c.Type = "integer"
		case '?':
			c.Type = "boolean"
		}
		if c.Name == "Name" {
			c.Format = "name"
		}
		cell, otherwise, _ := strings.Cut(cell, "|")
		maker := func(o *content) any { return o.text(cell) }
		if call, path, ok := strings.Cut(cell, "("); ok {
			maker = func(o *content) any { return functions[call](o, strings.TrimSuffix(path, ")")) }
		}
		headers, makers = append(headers, c), append(makers, func(o *content) any { return orElse(maker(o), otherwise) })
	}
	return headers, func(o *content) (all []any) {
		for _, maker := range makers {
			all = append(all, maker(o))
		}
		return all
	}
}

// orElse returns what stands for an empty text.
func orElse(cell any, otherwise string) any {
	if cell == "" {
		return otherwise
	}
	return cell
}

// content is an object of which cells are made. Most of its text is passed once to find its parts, and not for each value.
type content struct {
	whole rawjson.Value
	parts map[string]rawjson.Value // by the names of members
	now   time.Time                // for which ages are shown
}

func newContent(text rawjson.Value, now time.Time) *content {
	c := &content{text, map[string]rawjson.Value{}, now}
	for key, part := range text.Members() {
		c.parts[string(key)] = part
	}
	return c
}

// get returns the value at a path of members.
func (o *content) get(path string) rawjson.Value {
	part, rest, nested := strings.Cut(path, ".")
	if !nested {
		return o.whole.Get(path)
	}
	return o.parts[part].Get(rest)
}

func (o *content) list(path string) []rawjson.Value { return slices.Collect(o.get(path).Elements()) }
func (o *content) text(path string) string          { return o.get(path).Text() }
func (o *content) isTrue(path string) bool          { return isTrue(o.get(path)) }

// each returns the text at a path of each element of a list.
func (o *content) each(list, path string) (all []string) {
	for one := range o.get(list).Elements() {
		all = append(all, one.Get(path).Text())
	}
	return all
}

// condition returns the status of a condition; "" if there is none.
func (o *content) condition(kind string) string {
	for _, c := range o.list("status.conditions") {
		if c.Get("type").Text() == kind {
			return c.Get("status").Text()
		}
	}
	return ""
}

// since writes how long ago a time was; "" if there is none.
func (o *content) since(text string) string {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return ""
	}
	return duration.HumanDuration(o.now.Sub(at))
}

func (o *content) quantity(path string) string {
	q, err := resource.ParseQuantity(cmp.Or(o.text(path), "0"))
	if err != nil {
		return o.text(path)
	}
	return q.String()
}

func (o *content) modes(path string) string {
	var all []string
	for _, mode := range [][2]string{{"ReadWriteOnce", "RWO"}, {"ReadOnlyMany", "ROX"}, {"ReadWriteMany", "RWX"}, {"ReadWriteOncePod", "RWOP"}} {
		if slices.ContainsFunc(o.list(path), func(v rawjson.Value) bool { return v.Text() == mode[0] }) {
			all = append(all, mode[1])
		}
	}
	return strings.Join(all, ",")
}

// balancers returns the addresses of load balancers.
func (o *content) balancers() []string {
	all := map[string]bool{}
	for _, i := range o.list("status.loadBalancer.ingress") {
		all[cmp.Or(i.Get("ip").Text(), i.Get("hostname").Text())] = true
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

func (o *content) external() string {
	var all []string
	for _, ip := range o.list("spec.externalIPs") {
		all = append(all, ip.Text())
	}
	switch o.text("spec.type") {
	case "ClusterIP", "NodePort":
		return cmp.Or(strings.Join(all, ","), none)
	case "LoadBalancer":
		return cmp.Or(strings.Join(append(o.balancers(), all...), ","), "<pending>")
	case "ExternalName":
		return o.text("spec.externalName")
	}
	return unknown
}

func (o *content) hosts() string {
	const most = 3
	var all []string
	rules := o.each("spec.rules", "host")
	for _, host := range rules {
		if len(all) == most {
			return fmt.Sprintf("%s + %d more...", strings.Join(all, ","), len(rules)-most)
		}
		if host != "" {
			all = append(all, host)
		}
	}
	return cmp.Or(strings.Join(all, ","), "*")
}

func (o *content) job() string {
	for _, kind := range []string{"Complete", "Failed", "Terminating", "Suspended", "FailureTarget", "SuccessCriteriaMet"} {
		if o.condition(kind) == "True" && kind != "Terminating" || kind == "Terminating" && o.get("metadata.deletionTimestamp") != nil {
			return kind
		}
	}
	return "Running"
}

func eventCells(o *content) []any {
	first := cmp.Or(o.since(cmp.Or(o.text("firstTimestamp"), o.text("eventTime"))), unknown)
	last, count := cmp.Or(o.since(o.text("lastTimestamp")), first), cmp.Or(number(o.get("count")), 1)
	if o.get("series") != nil {
		last, count = o.since(o.text("series.lastObservedTime")), number(o.get("series.count"))
	}
	target := strings.ToLower(o.text("involvedObject.kind"))
	if of := o.text("involvedObject.name"); of != "" {
		target += "/" + of
	}
	source := cmp.Or(o.text("source.component"), o.text("reportingComponent"))
	if host := cmp.Or(o.text("source.host"), o.text("reportingInstance")); host != "" {
		source += ", " + host
	}
	return []any{
		last, o.text("type"), o.text("reason"), target, o.text("involvedObject.fieldPath"), source, strings.TrimSpace(o.text("message")),
		first, count, o.text("metadata.name"),
	}
}

// podStatus is what the status of a Pod is told from, as the API server tells it.
type podStatus struct {
	*content
	reason          string
	ready, restarts int64
	restarted       string // when a container ended last
}

func podCells(o *content) []any {
	s := podStatus{content: o, reason: cmp.Or(o.text("status.reason"), o.text("status.phase"))}
	for _, c := range o.list("status.conditions") {
		if c.Get("type").Text() == "PodScheduled" && c.Get("reason").Text() == "SchedulingGated" {
			s.reason = "SchedulingGated"
		}
	}
	containers := len(o.list("spec.containers"))
	sidecars := map[string]bool{}
	for _, c := range o.list("spec.initContainers") {
		if c.Get("restartPolicy").Text() == "Always" {
			sidecars[c.Get("name").Text()] = true
			containers++
		}
	}
	if initialized := s.addInit(sidecars); initialized || o.condition("Initialized") == "True" {
		s.restarts, s.restarted = 0, ""
		for _, c := range o.list("status.initContainerStatuses") {
			if sidecars[c.Get("name").Text()] {
				s.addRestarts(c)
			}
		}
		s.addContainers()
	}
	switch phase := o.text("status.phase"); {
	case o.get("metadata.deletionTimestamp") == nil:
	case o.text("status.reason") == "NodeLost":
		s.reason = "Unknown"
	case phase != "Succeeded" && phase != "Failed":
		s.reason = "Terminating"
	}
	restarts := strconv.FormatInt(s.restarts, 10)
	if ago := o.since(s.restarted); s.restarts > 0 && ago != "" {
		restarts += " (" + ago + " ago)"
	}
	return []any{
		o.text("metadata.name"), fmt.Sprintf("%d/%d", s.ready, containers), s.reason, restarts,
		cmp.Or(o.since(o.text("metadata.creationTimestamp")), unknown),
		cmp.Or(append(o.each("status.podIPs", "ip"), "")[0], none), cmp.Or(o.text("spec.nodeName"), none), cmp.Or(o.text("status.nominatedNodeName"), none), s.gates(),
	}
}

// addRestarts counts the restarts of a container. Times of one form are ordered as text.
func (s *podStatus) addRestarts(container rawjson.Value) {
	s.restarts += number(container.Get("restartCount"))
	s.restarted = max(s.restarted, container.Get("lastState.terminated.finishedAt").Text())
}

// addInit takes what init containers say, and reports whether all have done their work.
func (s *podStatus) addInit(sidecars map[string]bool) bool {
	for i, c := range s.list("status.initContainerStatuses") {
		s.addRestarts(c)
		ended, waits := c.Get("state.terminated") != nil, c.Get("state.waiting.reason").Text()
		switch {
		case ended && number(c.Get("state.terminated.exitCode")) == 0:
			continue
		case sidecars[c.Get("name").Text()] && isTrue(c.Get("started")):
			if isTrue(c.Get("ready")) {
				s.ready++
			}
			continue
		case ended:
			s.reason = "Init:" + endOf(c)
		case waits != "" && waits != "PodInitializing":
			s.reason = "Init:" + waits
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(s.list("spec.initContainers")))
		}
		return false
	}
	return true
}

// endOf says how a container ended.
func endOf(c rawjson.Value) string {
	signal, code := number(c.Get("state.terminated.signal")), number(c.Get("state.terminated.exitCode"))
	if reason := c.Get("state.terminated.reason").Text(); reason != "" {
		return reason
	}
	if signal != 0 {
		return fmt.Sprintf("Signal:%d", signal)
	}
	return fmt.Sprintf("ExitCode:%d", code)
}

// addContainers takes what the containers say; the first one has the last word.
func (s *podStatus) addContainers() {
	running, failure := false, ""
	for _, c := range slices.Backward(s.list("status.containerStatuses")) {
		s.addRestarts(c)
		switch {
		case c.Get("state.waiting.reason").Text() != "":
			s.reason = c.Get("state.waiting.reason").Text()
		case c.Get("state.terminated") != nil:
			if s.reason = endOf(c); number(c.Get("state.terminated.exitCode")) != 0 {
				failure = s.reason
			}
		case isTrue(c.Get("ready")) && c.Get("state.running") != nil:
			running = true
			s.ready++
		}
	}
	switch {
	case s.reason != "Completed":
	case running && s.condition("Ready") == "True":
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

// gates says how many readiness gates are open.
func (s *podStatus) gates() string {
	all, open := s.list("spec.readinessGates"), 0
	for _, g := range all {
		if s.condition(g.Get("conditionType").Text()) == "True" {
			open++
		}
	}
	if len(all) == 0 {
		return none
	}
	return fmt.Sprintf("%d/%d", open, len(all))
}

// number returns an integer; 0 for other values.
func number(v rawjson.Value) int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func isTrue(v rawjson.Value) bool { return string(v) == "true" }

// members returns how many members an object has.
func members(v rawjson.Value) (n int) {
	for range v.Members() {
		n++
	}
	return n
}

// texts returns an object of texts.
func texts(v rawjson.Value) (all map[string]string) {
	if v == nil || json.Unmarshal(v, &all) != nil {
		return nil
	}
	return all
}
