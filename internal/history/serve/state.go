package serve

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/klauspost/compress/s2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubecdc/kubecdc/internal/history"
	"github.com/kubecdc/kubecdc/pkg/event"
	store "github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// State is a cluster at a moment. It does not change: a replay makes others of it.
type State struct {
	Notes []string // what else to know of all answers

	cluster string
	moment  history.Moment // with a time
	types   []*objects
	doubt   history.Doubt
	pace    *pace                  // nil if the moment stands still
	latest  *atomic.Pointer[State] // that a replay has made
	moved   chan struct{}          // closed when there is a later one
}

// objects are those of a type, in the order of the API server.
type objects struct {
	history.Type
	listKind   string
	categories []string
	fields     []string // that field selectors may have
	columns    []metav1.TableColumnDefinition
	cells      func(*content) []any
	all        []*object
	log
}

// object is an object in one of its states.
type object struct {
	namespace, name, version string
	packed                   []byte // its text, compressed: a state is little else
	sequence                 int64  // of the newest row; of replays alone
}

// newObject returns the object of a row.
func newObject(row *store.Row) *object {
	text := unsafe.Slice(unsafe.StringData(row.Object), len(row.Object))
	return &object{row.Namespace, row.Name, row.ResourceVersion, pack(text), row.Sequence}
}

func pack(text []byte) []byte { return slices.Clone(s2.EncodeBetter(nil, text)) }

// text returns the text of the object, in the memory of buf if that is enough.
func (o *object) text(buf []byte) rawjson.Value {
	text, err := s2.Decode(buf[:cap(buf)], o.packed)
	if err != nil {
		panic(err) // pack made it
	}
	return text
}

// withVersion returns the object as it was when a change with a version deleted it.
func (o *object) withVersion(version string) *object {
	text := o.text(nil)
	metadata, end := text.Find("metadata")
	from, to := text[metadata:end].Find("resourceVersion")
	if from == to {
		return o
	}
	last := *o
	last.version = version
	last.packed = pack(slices.Concat(text[:metadata+from], []byte(strconv.Quote(version)), text[metadata+to:]))
	return &last
}

// key is what the API server sorts by.
func (o *object) key() string { return keyOf(o.namespace, o.name) }

func keyOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// loaded is what was read of a cluster.
type loaded struct {
	cluster string
	types   map[string]*objects
	newest  map[string]int64 // sequence of the row that told the version of a type
	last    store.Facts      // the row that was written last
}

// Load reads the state at a moment. Of several clusters it is the one that was written last.
func Load(ctx context.Context, h *history.History, m history.Moment) (*State, error) {
	recorded, err := history.Types(ctx, h)
	if err != nil {
		return nil, err
	}
	doubt, err := h.DoubtAt(ctx, history.Scope{}, m)
	if err != nil {
		return nil, err
	}
	clusters := []*loaded{{}}
	err = h.Objects(ctx, history.Scope{}, m, func(row *store.Row) error {
		last := clusters[len(clusters)-1]
		if last.types == nil || last.cluster != row.Cluster {
			last = &loaded{cluster: row.Cluster, types: map[string]*objects{}, newest: map[string]int64{}}
			clusters = append(clusters, last)
		}
		last.add(row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := slices.MaxFunc(clusters, func(a, b *loaded) int { return cmp.Compare(a.last.Sequence, b.last.Sequence) })
	s := &State{Notes: doubt.Notes, cluster: c.cluster, moment: m, doubt: doubt, latest: &atomic.Pointer[State]{}, moved: make(chan struct{})}
	positions, last, err := history.Positions(ctx, h, m)
	if err != nil {
		return nil, err
	}
	if last.Sequence < c.last.Sequence {
		last = c.last
	}
	if m.Version != "" {
		positions, s.moment.Time = nil, last.Time()
	}
	if len(clusters) > 2 {
		s.Notes = append(s.Notes, fmt.Sprintf("only the objects of the cluster %q are served, and the history has others", c.cluster))
	}
	for _, t := range recorded {
		s.addType(t, c.types[t.String()], cmp.Or(m.Version, positions[t.String()], "1"))
	}
	for _, t := range s.types {
		t.describe(s.definitions())
	}
	s.latest.Store(s)
	return s, nil
}

func (l *loaded) add(row *store.Row) {
	name := (event.Resource{Group: row.Group, Resource: row.Resource}).String()
	t := l.types[name]
	if t == nil {
		t = &objects{}
		l.types[name] = t
	}
	if row.Sequence >= l.newest[name] {
		t.Version, l.newest[name] = row.Version, row.Sequence
	}
	if row.Sequence >= l.last.Sequence {
		l.last = row.Facts
	}
	t.all = append(t.all, newObject(row))
}

// addType adds a type with its objects, if there are any. position is the version of its lists, as far as it is not that of
// an object.
func (s *State) addType(t history.Type, known *objects, position string) {
	all := &objects{Type: t, listKind: t.Kind + "List"}
	if known != nil {
		all.all = known.all
		all.Version = known.Version
	}
	if all.Version == "" { // of a definition alone
		return
	}
	slices.SortFunc(all.all, func(a, b *object) int { return strings.Compare(a.key(), b.key()) })
	for _, o := range all.all {
		if order, ordered := resourceversion.Compare(o.version, position); ordered && order > 0 && s.moment.Version == "" {
			position = o.version
		}
	}
	all.version, all.floor = position, position
	if len(all.all) > 0 {
		all.ClusterScoped = all.all[0].namespace == ""
	}
	s.types = append(s.types, all)
}

// now returns the time for which ages are shown.
func (s *State) now() time.Time {
	if s.pace == nil {
		return s.moment.Time
	}
	return s.pace.now()
}

// definitions returns the definitions of custom resources; nil if they were not recorded.
func (s *State) definitions() *objects {
	return s.typeOf("apiextensions.k8s.io", "customresourcedefinitions")
}

// typeOf returns the objects of a type; nil if it was not recorded.
func (s *State) typeOf(group, resource string) *objects {
	for _, t := range s.types {
		if t.Group == group && t.Resource.Resource == resource {
			return t
		}
	}
	return nil
}

// fieldsOf has the fields that the API server selects by, beside name and namespace.
var fieldsOf = map[string][]string{
	"pods": strings.Fields("spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork status.phase status.podIP " +
		"status.nominatedNodeName"),
	"nodes":                  {"spec.unschedulable"},
	"replicationcontrollers": {"status.replicas"},
	"namespaces":             {"status.phase"},
	"secrets":                {"type"},
	"services":               {"spec.clusterIP", "spec.type"},
	"jobs.batch":             {"status.successful"},
	"events": strings.Fields("involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion " +
		"involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type"),
	"certificatesigningrequests.certificates.k8s.io": {"spec.signerName"},
}

// storedAs has the paths of fields that are stored elsewhere.
var storedAs = map[string]string{"status.successful": "status.succeeded", "source": "source.component"}

// selection is which objects a request is about.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	buf       []byte // for texts
}

// parseSelection reads the selectors of a request.
func (t *objects) parseSelection(namespace string, q url.Values) (s selection, err error) {
	s.namespace = namespace
	if s.labels, err = labels.Parse(q.Get("labelSelector")); err != nil {
		return s, badRequest("labelSelector: %v", err)
	}
	if s.fields, err = fields.ParseSelector(q.Get("fieldSelector")); err != nil {
		return s, badRequest("fieldSelector: %v", err)
	}
	for _, r := range s.fields.Requirements() {
		if known := append([]string{"metadata.name", "metadata.namespace"}, t.fields...); !slices.Contains(known, r.Field) {
			return s, badRequest("field label not supported: %s; %s can be selected by %s", r.Field, t, strings.Join(known, ", "))
		}
	}
	return s, nil
}

// has reports whether an object is selected.
func (s *selection) has(o *object) bool {
	if s.namespace != "" && s.namespace != o.namespace {
		return false
	}
	if s.labels.Empty() && s.fields.Empty() {
		return true
	}
	text, values := o.text(s.buf), fields.Set{}
	s.buf = text
	for _, r := range s.fields.Requirements() {
		values[r.Field] = o.field(text, r)
	}
	return s.labels.Matches(labels.Set(texts(text.Get("metadata.labels")))) && s.fields.Matches(values)
}

// field returns the value of a field of a requirement. A boolean or a number that is not there is false or 0.
func (o *object) field(text rawjson.Value, r fields.Requirement) string {
	switch r.Field {
	case "metadata.name":
		return o.name
	case "metadata.namespace":
		return o.namespace
	}
	path := r.Field
	if stored, ok := storedAs[path]; ok {
		path = stored
	}
	switch found := text.Get(path); {
	case found == nil && (r.Value == "false" || r.Value == "0"):
		return r.Value
	case found.IsText():
		return found.Text()
	default:
		return string(found)
	}
}

// position is what a continue token holds: the version of the lists, and the key of the last object of the page.
type position struct{ Version, Key string }

// page is a part of a list.
type page struct {
	all []*object
	metav1.ListMeta
}

// selectPage returns the objects that a request asks for.
func (t *objects) selectPage(sel selection, q url.Values) (p page, err error) {
	limit, err := strconv.Atoi(q.Get("limit"))
	if text := q.Get("limit"); text != "" && (err != nil || limit < 0) {
		return p, badRequest("limit: %q is no number of objects", text)
	}
	version := t.version
	if q.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact) {
		version = q.Get("resourceVersion")
	}
	var from position
	if token := q.Get("continue"); token != "" {
		b, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || json.Unmarshal(b, &from) != nil {
			return p, badRequest("continue: this is no token of this server")
		}
		version = from.Version
	}
	rest, ok := t.at(version)
	if !ok {
		return p, t.expired(version)
	}
	if from.Key != "" {
		rest = rest[sort.Search(len(rest), func(i int) bool { return rest[i].key() > from.Key }):]
	}
	p.ResourceVersion = version
	for i, o := range rest {
		if !sel.has(o) {
			continue
		}
		if limit > 0 && len(p.all) == limit {
			b, err := json.Marshal(position{version, p.all[limit-1].key()})
			if err != nil {
				return p, err
			}
			if p.Continue = base64.RawURLEncoding.EncodeToString(b); sel.labels.Empty() && sel.fields.Empty() && sel.namespace == "" {
				left := int64(len(rest) - i)
				p.RemainingItemCount = &left
			}
			break
		}
		p.all = append(p.all, o)
	}
	return p, nil
}

// find returns an object by its name; nil if there is none.
func (t *objects) find(namespace, name string) *object {
	if i, found := search(t.all, keyOf(namespace, name)); found {
		return t.all[i]
	}
	return nil
}

// search returns the place of a key among objects in order.
func search(all []*object, key string) (i int, found bool) {
	return sort.Find(len(all), func(i int) int { return strings.Compare(key, all[i].key()) })
}

func badRequest(format string, args ...any) error {
	return fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Sprintf(format, args...))
}
