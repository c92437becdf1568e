package serve

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/kubecdc/kubecdc/pkg/history"
)

const (
	maxBody     = 64 << 10
	bodyTimeout = 5 * time.Second
	// bookmarkEvery is how often a watch says that nothing has happened.
	bookmarkEvery = time.Minute
)

func (t *objects) groupVersion() string {
	return schema.GroupVersion{Group: t.Group, Version: t.Version}.String()
}

func (t *objects) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: t.Group, Resource: t.Resource.Resource}
}

// request is what the path of a request names.
type request struct {
	group, version, resource, namespace, name, subresource string
}

// parsePath reads the path of a request below /api or /apis.
func parsePath(path string) (r request) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	next := func() (part string) {
		if len(parts) > 0 {
			part, parts = parts[0], parts[1:]
		}
		return part
	}
	if next() == "apis" {
		r.group = next()
	}
	r.version = next()
	if r.resource = next(); r.resource == "namespaces" && len(parts) > 1 {
		if r.namespace = next(); parts[0] == "status" || parts[0] == "finalize" {
			r.name, r.namespace = r.namespace, ""
		} else {
			r.resource = next()
		}
	}
	if r.name == "" {
		r.name = next()
	}
	r.subresource = strings.Join(parts, "/")
	return r
}

// ServeHTTP answers a request of a known sender.
func (s *State) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.answer(w, r); err != nil {
		writeError(w, err)
	}
}

func (s *State) answer(w http.ResponseWriter, r *http.Request) error {
	if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") && r.Method == http.MethodPost {
		return review(w, r)
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return fail(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "a history is read-only: the past cannot be changed")
	}
	f, err := acceptedForm(r.Header.Get("Accept"))
	if err != nil {
		return err
	}
	if v := s.discover(r.URL.Path); v != nil {
		writeJSON(w, http.StatusOK, v)
		return nil
	}
	path := parsePath(r.URL.Path)
	t := s.typeOf(path.group, path.resource)
	if t == nil || t.Version != path.version || t.ClusterScoped && path.namespace != "" || !strings.HasPrefix(r.URL.Path, "/api") {
		return fail(http.StatusNotFound, metav1.StatusReasonNotFound, "the history has nothing at this path")
	}
	out := newWriter(w, s, t, f, r.URL.Query().Get("includeObject"))
	switch watch := r.URL.Query().Get("watch"); {
	case path.subresource != "" && path.subresource != "status":
		return fail(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("the history has no %s of %s", path.subresource, t))
	case path.name != "":
		return s.get(w, out, path)
	case watch == "true" || watch == "1":
		return s.watch(w, r, out, path)
	}
	return s.list(w, r, out, path)
}

// known returns an error if a part of what a key means is not known, and otherwise warns of what may be wrong.
func (s *State) known(w http.ResponseWriter, k history.Key, uncertainToo bool) error {
	k.Cluster = s.cluster
	doubt := s.doubt.About(k)
	if len(doubt.Unknown) > 0 || uncertainToo && doubt.Any() {
		return fail(http.StatusGone, metav1.StatusReasonGone, strings.Join(doubt.Lines(), "; "))
	}
	warn(w, doubt.Lines())
	return nil
}

func (s *State) get(w http.ResponseWriter, out *writer, r request) error {
	o := out.of.find(r.namespace, r.name)
	key := history.Key{Cluster: s.cluster, Group: r.group, Resource: r.resource, Namespace: r.namespace, Name: r.name}
	if o == nil || s.doubt.Hides(key) {
		if err := s.known(w, key, true); err != nil {
			return err
		}
		return apierrors.NewNotFound(out.of.groupResource(), r.name)
	}
	doubt := s.doubt.About(key)
	doubt.Unknown = nil // it is known, whatever else was
	warn(w, doubt.Lines())
	out.writeObject(o)
	out.WriteByte('\n') //nolint:errcheck // see Flush
	return out.Flush()
}

// prepare reads what a list and a watch have in common.
func (s *State) prepare(w http.ResponseWriter, r *http.Request, t *objects, path request) (selection, error) {
	sel, err := t.parseSelection(path.namespace, r.URL.Query())
	if err != nil {
		return sel, err
	}
	return sel, s.known(w, history.Key{Group: t.Group, Resource: t.Resource.Resource, Namespace: path.namespace}, false)
}

func (s *State) list(w http.ResponseWriter, r *http.Request, out *writer, path request) error {
	sel, err := s.prepare(w, r, out.of, path)
	if err != nil {
		return err
	}
	p, err := out.of.selectPage(sel, r.URL.Query())
	if err != nil {
		return err
	}
	return out.writeList(p)
}

// watch passes what exists, if that is asked for, and then what happens, until that is not known any more. From time to
// time it has a bookmark, if the client wants some.
func (s *State) watch(w http.ResponseWriter, r *http.Request, out *writer, path request) error {
	q := r.URL.Query()
	sel, err := s.prepare(w, r, out.of, path)
	if err != nil {
		return err
	}
	from, initial := q.Get("resourceVersion"), q.Get("sendInitialEvents") == "true"
	if initial || from == "" || from == "0" {
		from = out.of.version
		for _, o := range out.of.all {
			if sel.has(o) {
				out.writeEvent("ADDED", o)
			}
		}
	}
	passed, ok := out.of.after(from)
	if !ok {
		return out.of.expired(from)
	}
	bookmarks := q.Get("allowWatchBookmarks") == "true" || q.Get("allowWatchBookmarks") == "1"
	if initial {
		out.writeBookmark(`,"annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}`)
	}
	ends := make(<-chan time.Time)
	if after, err := time.ParseDuration(q.Get("timeoutSeconds") + "s"); err == nil && after > 0 {
		ends = time.After(after)
	}
	every := time.NewTicker(bookmarkEvery)
	defer every.Stop()
	for {
		if out.Flush() != nil || http.NewResponseController(w).Flush() != nil {
			return nil // the client has gone
		}
		select {
		case <-s.moved:
			s = s.latest.Load()
			out.state, out.of = s, s.typeOf(path.group, path.resource)
			changes, ok := out.of.since(passed)
			if !ok {
				out.writeExpired(out.of.expired(from))
				out.Flush() //nolint:errcheck // the client has gone
				return nil
			}
			for i := range changes {
				out.writeChange(sel, &changes[i])
			}
			passed += len(changes)
		case <-every.C:
			if bookmarks {
				out.writeBookmark("")
			}
		case <-ends:
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
}

// writeChange writes a change as it looks through a selection.
func (w *writer) writeChange(sel selection, c *change) {
	was, is := c.was != nil && sel.has(c.was), c.is != nil && sel.has(c.is)
	switch {
	case was && is:
		w.writeEvent("MODIFIED", c.is)
	case is:
		w.writeEvent("ADDED", c.is)
	case was:
		w.writeEvent("DELETED", c.was.withVersion(c.version))
	}
}

// writeExpired writes that a watch ends with an error.
func (w *writer) writeExpired(err *apierrors.StatusError) {
	b, _ := json.Marshal(err.ErrStatus) // it is text and numbers
	fmt.Fprintf(w, `{"type":"ERROR","object":%s}`+"\n", b)
}

func (w *writer) writeEvent(kind string, o *object) {
	fmt.Fprintf(w, `{"type":%q,"object":`, kind)
	w.writeObject(o)
	w.WriteString("}\n") //nolint:errcheck // see Flush
}

func (w *writer) writeBookmark(more string) {
	metadata := fmt.Sprintf(`{"resourceVersion":%q%s}`, w.of.version, more)
	kind, apiVersion := w.of.Kind, w.of.groupVersion()
	switch w.form {
	case table:
		kind, apiVersion = "Table", metav1.SchemeGroupVersion.String()
	case partial, partials:
		kind, apiVersion = string(partial), metav1.SchemeGroupVersion.String()
	case whole:
	}
	fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":%s}}`+"\n", kind, apiVersion, metadata)
}

// discover returns what is served; nil for a path that is not of discovery.
func (s *State) discover(path string) any {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case slices.Contains([]string{"/healthz", "/livez", "/readyz"}, path):
		return "ok"
	case path == "/version":
		return map[string]string{"major": "1", "minor": "0", "gitVersion": "v1.0.0-history"}
	case path == "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "/apis":
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: s.groups()}
	case len(parts) == 2 && parts[0] == "api":
		return s.resources("", parts[1])
	case len(parts) == 3 && parts[0] == "apis":
		return s.resources(parts[1], parts[2])
	case len(parts) == 2 && parts[0] == "apis":
		for _, g := range s.groups() {
			if g.Name == parts[1] {
				g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
				return g
			}
		}
	}
	return nil
}

func (s *State) groups() (all []metav1.APIGroup) {
	for _, t := range s.types {
		if t.Group == "" {
			continue
		}
		i := slices.IndexFunc(all, func(g metav1.APIGroup) bool { return g.Name == t.Group })
		if i < 0 {
			i, all = len(all), append(all, metav1.APIGroup{Name: t.Group})
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: t.groupVersion(), Version: t.Version}
		if !slices.Contains(all[i].Versions, v) {
			all[i].Versions = append(all[i].Versions, v)
		}
		all[i].PreferredVersion = all[i].Versions[0]
	}
	return all
}

// resources returns the types of a version of a group; nil if there is none.
func (s *State) resources(group, version string) any {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: schema.GroupVersion{Group: group, Version: version}.String()}
	for _, t := range s.types {
		if t.Group == group && t.Version == version {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: t.Resource.Resource, SingularName: t.Singular, Namespaced: !t.ClusterScoped, Kind: t.Kind, Verbs: []string{"get", "list", "watch"},
				ShortNames: t.ShortNames, Categories: t.categories,
			})
		}
	}
	if list.APIResources == nil {
		return nil
	}
	return list
}

// review answers whether something may be done, which k9s asks before it lists: everything may be read.
func review(w http.ResponseWriter, r *http.Request) error {
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return err
	}
	var asked struct {
		metav1.TypeMeta
		Spec struct {
			ResourceAttributes struct {
				Verb string `json:"verb"`
			} `json:"resourceAttributes"`
		} `json:"spec"`
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&asked); err != nil {
		return badRequest("expected a SelfSubjectAccessReview as JSON: %v", err)
	}
	asked.Status.Allowed = slices.Contains([]string{"get", "list", "watch"}, asked.Spec.ResourceAttributes.Verb)
	writeJSON(w, http.StatusCreated, asked)
	return nil
}

// form is how objects are written.
type form string

const (
	whole    form = ""
	table    form = "Table"
	partial  form = "PartialObjectMetadata"
	partials form = "PartialObjectMetadataList"
)

// acceptedForm returns the first form of a header Accept that this server has. Other encodings than JSON, and the forms of
// discovery, have alternatives in the same header.
func acceptedForm(accept string) (form, error) {
	if accept == "" {
		return whole, nil
	}
	for one := range strings.SplitSeq(accept, ",") {
		kind, p, err := mime.ParseMediaType(one)
		if err != nil || kind != "application/json" && kind != "application/*" && kind != "*/*" {
			continue
		}
		switch f := form(p["as"]); {
		case f == whole:
			return f, nil
		case p["g"] == metav1.GroupName && (f == table || f == partial || f == partials):
			return f, nil
		}
	}
	return whole, fail(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "a history is served as application/json only")
}

func fail(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}

// writeError answers with an error, as the API server does.
func writeError(w http.ResponseWriter, err error) {
	status := apierrors.NewInternalError(err).ErrStatus
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		status = s.Status()
	}
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	writeJSON(w, int(status.Code), status)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(append(b, '\n')) //nolint:errcheck // the client has gone
}

// warn adds what else to know to an answer, which kubectl prints.
func warn(w http.ResponseWriter, lines []string) {
	for _, line := range lines {
		if header, err := utilnet.NewWarningHeader(299, "-", line); err == nil {
			w.Header().Add("Warning", header)
		}
	}
}

// writer writes objects of a type in a form.
type writer struct {
	*bufio.Writer
	state  *State
	of     *objects
	form   form
	object bool   // whole in the rows of a table
	buf    []byte // for texts
}

func newWriter(w http.ResponseWriter, s *State, of *objects, f form, include string) *writer {
	w.Header().Set("Content-Type", "application/json")
	return &writer{Writer: bufio.NewWriterSize(w, 64<<10), state: s, of: of, form: f, object: include == "Object"}
}

// writeList writes a list. Errors of the connection show in Flush.
func (w *writer) writeList(p page) error {
	head := struct {
		Kind       string          `json:"kind"`
		APIVersion string          `json:"apiVersion"`
		Metadata   metav1.ListMeta `json:"metadata"`
	}{w.of.listKind, w.of.groupVersion(), p.ListMeta}
	items, cells := "items", make([][]byte, len(p.all))
	switch w.form {
	case table:
		items, head.Kind, head.APIVersion = "rows", "Table", metav1.SchemeGroupVersion.String()
		cells = w.of.render(p.all, w.state.now())
	case partial, partials:
		head.Kind, head.APIVersion = string(partials), metav1.SchemeGroupVersion.String()
	case whole:
	}
	b, err := json.Marshal(head)
	if err != nil {
		return err
	}
	w.Write(b[:len(b)-1]) //nolint:errcheck // see Flush
	if w.form == table {
		w.writeColumns()
	}
	fmt.Fprintf(w, `,%q:[`, items)
	for i, o := range p.all {
		if i > 0 {
			w.WriteByte(',') //nolint:errcheck // see Flush
		}
		w.writeItem(o, cells[i])
	}
	w.WriteString("]}\n") //nolint:errcheck // see Flush
	return w.Flush()
}

func (w *writer) writeColumns() {
	if b, err := json.Marshal(w.of.columns); err == nil { // they are text and numbers
		w.WriteString(`,"columnDefinitions":`) //nolint:errcheck // see Flush
		w.Write(b)                             //nolint:errcheck // see Flush
	}
}

// writeItem writes an object as an item of a list, and of a table with its cells.
func (w *writer) writeItem(o *object, cells []byte) {
	switch w.form {
	case table:
		fmt.Fprintf(w, `{"cells":%s,"object":`, cells)
		if w.object {
			w.writeText(o)
		} else {
			w.writePartial(o)
		}
		w.WriteByte('}') //nolint:errcheck // see Flush
	case partial, partials:
		w.writePartial(o)
	default:
		w.writeText(o)
	}
}

func (w *writer) writeText(o *object) {
	w.buf = o.text(w.buf)
	w.Write(w.buf) //nolint:errcheck // see Flush
}

func (w *writer) writePartial(o *object) {
	text := o.text(w.buf)
	w.buf = text
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":%s}`, partial, metav1.SchemeGroupVersion, text.Member("metadata"))
}

// writeObject writes an object by itself.
func (w *writer) writeObject(o *object) {
	if w.form != table {
		w.writeItem(o, nil)
		return
	}
	fmt.Fprintf(w, `{"kind":"Table","apiVersion":%q,"metadata":{"resourceVersion":%q}`, metav1.SchemeGroupVersion, o.version)
	w.writeColumns()
	w.WriteString(`,"rows":[`) //nolint:errcheck // see Flush
	w.writeItem(o, w.of.cellsOf(o.text(nil), w.state.now()))
	w.WriteString("]}") //nolint:errcheck // see Flush
}
