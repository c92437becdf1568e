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
	"unsafe"

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
	"number":    func(o *content, path string) any { return o.get(path).number() },
	"since":     func(o *content, path string) any { return o.since(o.text(path)) },
	"size":      func(o *content, path string) any { return len(o.list(path)) + o.get(path).members() },
	"data":      func(o *content, _ string) any { return o.get("data").members() + o.get("binaryData").members() },
	"labels":    func(o *content, path string) any { return labels.FormatLabels(o.get(path).texts()) },
	"names":     func(o *content, path string) any { return strings.Join(o.each(path, "name"), ",") },
	"images":    func(o *content, path string) any { return strings.Join(o.each(path, "image"), ",") },
	"balancers": func(o *content, _ string) any { return strings.Join(o.balancers(), ",") },
	"external":  func(o *content, _ string) any { return o.external() },
	"hosts":     func(o *content, _ string) any { return o.hosts() },
	"job":       func(o *content, _ string) any { return o.job() },
	"first":     func(o *content, path string) any { return append(o.list(path), nil)[0].string() },
	"ready": func(o *content, _ string) any {
		return fmt.Sprintf("%d/%d", o.get("status.readyReplicas").number(), o.get("spec.replicas").number())
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
		if parallel := o.get("spec.parallelism").number(); of == "" && parallel > 1 {
			of = fmt.Sprintf("1 of %d", parallel)
		}
		return fmt.Sprintf("%d/%s", o.get("status.succeeded").number(), cmp.Or(of, "1"))
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
			port := string(p.get("port"))
			if to := p.get("nodePort").number(); to > 0 {
				port += ":" + strconv.FormatInt(to, 10)
			}
			all = append(all, port+"/"+p.text("protocol"))
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
		for label, value := range o.get("metadata.labels").texts() {
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
			if a.text("type") == kind {
				return a.text("address")
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
		if class, ok := o.get("metadata.annotations").texts()["volume.beta.kubernetes.io/storage-class"]; ok {
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
	value
	metadata, spec, status value
	now                    time.Time // for which ages are shown
}

func (v value) content(now time.Time) *content {
	c := &content{value: v, now: now}
	parts := map[string]*value{"metadata": &c.metadata, "spec": &c.spec, "status": &c.status}
	for m := rawjson.EnterObject(v, 0); m.Next(); {
		end := rawjson.SkipTrustedValue(v, m.I)
		if end < 0 {
			break
		}
		if part := parts[string(m.Key)]; part != nil {
			*part = v[m.I:end:end]
		}
		m.I = end
	}
	return c
}

// get returns the value at a path of members.
func (o *content) get(path string) value {
	part, rest, nested := strings.Cut(path, ".")
	switch {
	case !nested:
	case part == "metadata":
		return o.metadata.get(rest)
	case part == "spec":
		return o.spec.get(rest)
	case part == "status":
		return o.status.get(rest)
	}
	return o.value.get(path)
}

func (o *content) list(path string) []value        { return o.get(path).elements() }
func (o *content) each(list, path string) []string { return o.get(list).each(path) }
func (o *content) text(path string) string         { return o.get(path).string() }
func (o *content) isTrue(path string) bool         { return string(o.get(path)) == "true" }

// condition returns the status of a condition; "" if there is none.
func (o *content) condition(kind string) string {
	for _, c := range o.list("status.conditions") {
		if c.text("type") == kind {
			return c.text("status")
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
		if slices.ContainsFunc(o.list(path), func(v value) bool { return v.string() == mode[0] }) {
			all = append(all, mode[1])
		}
	}
	return strings.Join(all, ",")
}

// balancers returns the addresses of load balancers.
func (o *content) balancers() []string {
	all := map[string]bool{}
	for _, i := range o.list("status.loadBalancer.ingress") {
		all[cmp.Or(i.text("ip"), i.text("hostname"))] = true
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

func (o *content) external() string {
	var all []string
	for _, ip := range o.list("spec.externalIPs") {
		all = append(all, ip.string())
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
	last, count := cmp.Or(o.since(o.text("lastTimestamp")), first), cmp.Or(o.get("count").number(), 1)
	if o.get("series") != nil {
		last, count = o.since(o.text("series.lastObservedTime")), o.get("series.count").number()
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
		if c.text("type") == "PodScheduled" && c.text("reason") == "SchedulingGated" {
			s.reason = "SchedulingGated"
		}
	}
	containers := len(o.list("spec.containers"))
	sidecars := map[string]bool{}
	for _, c := range o.list("spec.initContainers") {
		if c.text("restartPolicy") == "Always" {
			sidecars[c.text("name")] = true
			containers++
		}
	}
	if initialized := s.addInit(sidecars); initialized || o.condition("Initialized") == "True" {
		s.restarts, s.restarted = 0, ""
		for _, c := range o.list("status.initContainerStatuses") {
			if sidecars[c.text("name")] {
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
func (s *podStatus) addRestarts(container value) {
	s.restarts += container.get("restartCount").number()
	s.restarted = max(s.restarted, container.text("lastState.terminated.finishedAt"))
}

// addInit takes what init containers say, and reports whether all have done their work.
func (s *podStatus) addInit(sidecars map[string]bool) bool {
	for i, c := range s.list("status.initContainerStatuses") {
		s.addRestarts(c)
		ended, waits := c.get("state.terminated") != nil, c.text("state.waiting.reason")
		switch {
		case ended && c.get("state.terminated.exitCode").number() == 0:
			continue
		case sidecars[c.text("name")] && c.isTrue("started"):
			if c.isTrue("ready") {
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
func endOf(c value) string {
	signal, code := c.get("state.terminated.signal").number(), c.get("state.terminated.exitCode").number()
	if reason := c.text("state.terminated.reason"); reason != "" {
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
		case c.text("state.waiting.reason") != "":
			s.reason = c.text("state.waiting.reason")
		case c.get("state.terminated") != nil:
			if s.reason = endOf(c); c.get("state.terminated.exitCode").number() != 0 {
				failure = s.reason
			}
		case c.isTrue("ready") && c.get("state.running") != nil:
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
		if s.condition(g.text("conditionType")) == "True" {
			open++
		}
	}
	if len(all) == 0 {
		return none
	}
	return fmt.Sprintf("%d/%d", open, len(all))
}

// value is a value of an object as JSON; nil where there is none. Cells need few of an object's values, which are found many
// times faster than the object is decoded.
type value []byte

// valueOf returns the value of a text, in its memory.
func valueOf(text string) value { return unsafe.Slice(unsafe.StringData(text), len(text)) }

// get returns the value at a path of members.
func (v value) get(path string) value {
	for name := range strings.SplitSeq(path, ".") {
		v = v.member(name)
	}
	if string(v) == "null" {
		return nil
	}
	return v
}

// member returns the value of a member of an object.
func (v value) member(name string) value {
	if from, to := v.find(name); from < to {
		return v[from:to:to]
	}
	return nil
}

// find returns where the value of a member of an object begins and ends; 0 for both if there is none.
func (v value) find(name string) (from, to int) {
	for m := rawjson.EnterObject(v, 0); m.Next(); {
		end := rawjson.SkipTrustedValue(v, m.I)
		if end < 0 {
			return 0, 0
		}
		if string(m.Key) == name {
			return m.I, end
		}
		m.I = end
	}
	return 0, 0
}

// members returns how many members an object has.
func (v value) members() (n int) {
	for m := rawjson.EnterObject(v, 0); m.Next(); n++ {
		m.I = rawjson.SkipTrustedValue(v, m.I)
	}
	return n
}

// elements returns the elements of an array.
func (v value) elements() (all []value) {
	if len(v) == 0 || v[0] != '[' {
		return nil
	}
	for e := rawjson.EnterArray(v, 0); e.Next(); {
		end := rawjson.SkipTrustedValue(v, e.I)
		if end < 0 {
			return all
		}
		all = append(all, v[e.I:end:end])
		e.I = end
	}
	return all
}

// each returns the text at a path of each element of an array.
func (v value) each(path string) (all []string) {
	for _, one := range v.elements() {
		all = append(all, one.text(path))
	}
	return all
}

// string returns the text of a string; "" of other values.
func (v value) string() string {
	if len(v) == 0 || v[0] != '"' {
		return ""
	}
	return string(rawjson.Unquote(v))
}

func (v value) text(path string) string { return v.get(path).string() }

func (v value) number() int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (v value) isTrue(path string) bool { return string(v.get(path)) == "true" }

// texts returns an object of texts.
func (v value) texts() (all map[string]string) {
	if v == nil || json.Unmarshal(v, &all) != nil {
		return nil
	}
	return all
}
