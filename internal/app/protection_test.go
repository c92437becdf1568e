package app

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// definedType is an API server that has one type. A test replaces its definition.
type definedType struct {
	mu         sync.Mutex
	definition func(w http.ResponseWriter) // the CustomResourceDefinition; nil: there is none
	openAPI    string                      // members of the spec in the OpenAPI document, "" without one
	other      bool                        // the OpenAPI document is about other kinds
	unread     int                         // documents that the client had already
	requests   map[string]int              // by what was sent
}

// count counts an answer. Requires d.mu.
func (d *definedType) count(what string) {
	if d.requests == nil {
		d.requests = map[string]int{}
	}
	d.requests[what]++
}

func (d *definedType) set(definition func(http.ResponseWriter), openAPI string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.definition, d.openAPI = definition, openAPI
}

func (d *definedType) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	tag := fmt.Sprintf("%q", d.openAPI)
	switch {
	case strings.Contains(r.URL.Path, "/customresourcedefinitions/") && d.definition != nil:
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
			d.count("metadata")
		} else {
			d.count("definition")
		}
		d.definition(w)
	case strings.HasPrefix(r.URL.Path, "/openapi/") && d.openAPI != "" && r.Header.Get("If-None-Match") == tag:
		d.unread++
		d.count("not modified")
		w.WriteHeader(http.StatusNotModified)
	case strings.HasPrefix(r.URL.Path, "/openapi/") && d.openAPI != "":
		d.count("document")
		kind := "Vault"
		if d.other {
			kind = "Other"
		}
		w.Header().Set("ETag", tag)
		fmt.Fprintf(w, `{"components":{"schemas":{"V":{"x-kubernetes-group-version-kind":[{"group":"example.com","version":"v1","kind":%q}],
			"properties":{"spec":{"properties":{%q:{"type":"string"}}}}}}}}`, kind, d.openAPI)
	case strings.HasSuffix(r.URL.Path, "/vaults"):
		d.count("objects")
		fmt.Fprint(w, `{"kind":"VaultList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"1"},"items":[`+
			`{"kind":"Vault","apiVersion":"example.com/v1","metadata":{"name":"a","resourceVersion":"1","uid":"u"},"spec":{"token":"x"}}]}`)
	default:
		d.count("not found")
		http.NotFound(w, r)
	}
}

// definedBy answers with a definition that has one member in its spec.
func definedBy(generation int, member string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		fmt.Fprintf(w, `{"metadata":{"uid":"u","generation":%d},"spec":{"versions":[{"name":"v1","schema":{"openAPIV3Schema":
			{"properties":{"spec":{"properties":{%q:{"type":"string"}}}}}}}]}}`, generation, member)
	}
}

func forbidden(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
}

var vaults = selection.Scope{ID: "vaults.example.com", Resource: event.Resource{Group: "example.com", Version: "v1", Resource: "vaults", Kind: "Vault"}}

// protectToken returns the protection of one rule, which redacts spec.token in vaults, and its API server.
func protectToken(t *testing.T, strict bool) (*protection, *definedType) {
	t.Helper()
	d := &definedType{}
	server := httptest.NewServer(d)
	client, err := apiserver.NewClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	cfg := &config.Config{Resources: []config.Resource{{Policy: shape.Policy{RedactPaths: []string{"spec.token"}}}}}
	cfg.Redaction.Strict = strict
	p := newProtection(cfg, client, slog.New(slog.DiscardHandler))
	p.SetTypes([]source.GuardedType{{Scope: vaults, Next: vaults.Resource}})
	return p, d
}

// requireHeld checks why the rule is held; "" if it must not be.
func requireHeld(t *testing.T, p *protection, part string) {
	t.Helper()
	if reason, _ := p.heldBy(0); (reason == "") != (part == "") || !strings.Contains(reason, part) {
		t.Errorf("held: %q, want %q", reason, part)
	}
}

// TestAResponseIsVerifiedByTheDefinitionBeforeAndAfter edits the definition between a request and the begin of its response.
func TestAResponseIsVerifiedByTheDefinitionBeforeAndAfter(t *testing.T) {
	p, d := protectToken(t, true)
	d.set(definedBy(1, "token"), "")
	requireHeld(t, p, "not known to match yet")
	p.checkRules(t.Context())
	requireHeld(t, p, "")
	if err := p.BeginRequest(vaults)(t.Context()); err != nil {
		t.Errorf("an unchanged definition: %v", err)
	}
	_, revoked := p.heldBy(0)
	for len(p.wake) > 0 {
		<-p.wake
	}
	verify := p.BeginRequest(vaults)
	d.set(definedBy(2, "tokens"), "")
	if err := verify(t.Context()); !errors.As(err, new(*source.HeldError)) || !strings.Contains(err.Error(), `did you mean "spec.tokens"`) {
		t.Errorf("a definition without the path: %v", err)
	}
	select {
	case <-revoked:
	default:
		t.Error("other scopes of the rule go on")
	}
	if len(p.wake) == 0 {
		t.Error("a mended definition would be noticed after ten minutes")
	}
	verify = p.BeginRequest(vaults)
	d.set(definedBy(3, "token"), "")
	if err := verify(t.Context()); !errors.Is(err, source.ErrRedefined) {
		t.Errorf("a request that began before the definition was mended: %v", err)
	}
	requireHeld(t, p, "")
	if err := p.BeginRequest(vaults)(t.Context()); err != nil {
		t.Errorf("a mended definition: %v", err)
	}
}

// TestAnEditedOpenAPIDocumentIsNoticed has a type of an aggregated API server, which has no definition. The document is read
// again only if it has changed.
func TestAnEditedOpenAPIDocumentIsNoticed(t *testing.T) {
	p, d := protectToken(t, true)
	d.set(nil, "token")
	p.checkRules(t.Context())
	requireHeld(t, p, "")
	p.checkRules(t.Context())
	if d.unread != 1 {
		t.Errorf("%d documents were not transferred again, want 1", d.unread)
	}
	d.set(nil, "secret")
	p.checkRules(t.Context())
	requireHeld(t, p, `no selected type has "spec.token"`)
	d.set(nil, "token")
	p.checkRules(t.Context())
	requireHeld(t, p, "")
}

// TestTheRightToReadDefinitionsIsNeededForStrict holds both modes without that right: the OpenAPI document may be older than
// the definition.
func TestTheRightToReadDefinitionsIsNeededForStrict(t *testing.T) {
	p, d := protectToken(t, true)
	d.set(forbidden, "token")
	p.checkRules(t.Context())
	requireHeld(t, p, "exporter rbac prints the right")
	d.set(definedBy(1, "token"), "")
	p.checkRules(t.Context())
	requireHeld(t, p, "")
	d.set(forbidden, "token") // what was known stands for open watches, and not for new requests
	p.checkRules(t.Context())
	requireHeld(t, p, "")
	if err := p.BeginRequest(vaults)(t.Context()); !errors.As(err, new(*source.HeldError)) {
		t.Errorf("an unreadable definition: %v", err)
	}

	p, d = protectToken(t, false)
	d.set(forbidden, "tokens")
	p.checkRules(t.Context())
	if s := p.set.Statuses()[0]; !strings.Contains(s.Cause, `did you mean "spec.tokens"`) {
		t.Errorf("without strict the OpenAPI document suffices: %+v", s)
	}
	requireHeld(t, p, "")
}

// TestAPageCostsOneSmallAnswerAboutItsType verifies the pages of a list. What defines a type is transferred and parsed once:
// then each page costs the metadata of the definition or, for a type without one, an answer that its document is the same.
func TestAPageCostsOneSmallAnswerAboutItsType(t *testing.T) {
	const pages = 20
	for name, c := range map[string]struct {
		definition func(http.ResponseWriter)
		openAPI    string
		other      bool
		want       map[string]int
	}{
		"a custom resource":           {definedBy(1, "token"), "", false, map[string]int{"metadata": pages}},
		"a type of another server":    {nil, "token", false, map[string]int{"not found": pages, "not modified": pages}},
		"a type without a schema":     {nil, "token", true, map[string]int{"not found": pages, "not modified": pages}},
		"a type without any document": {nil, "", false, map[string]int{"not found": 2 * pages}},
	} {
		p, d := protectToken(t, true)
		d.set(c.definition, c.openAPI)
		d.other = c.other
		p.checkRules(t.Context())
		requireHeld(t, p, "")
		d.requests = nil
		for range pages {
			if err := p.BeginRequest(vaults)(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !maps.Equal(d.requests, c.want) {
			t.Errorf("%s: %d pages cost %v, want %v", name, pages, d.requests, c.want)
		}
	}
}

// TestARuleIsHeldWhileTheOnlyTypeWithAPathIsUninstalled and its other types are still served.
func TestARuleIsHeldWhileTheOnlyTypeWithAPathIsUninstalled(t *testing.T) {
	p, d := protectToken(t, true)
	chests := vaults
	chests.ID, chests.Resource.Resource, chests.Resource.Kind = "chests.example.com", "chests", "Chest"
	both := []source.GuardedType{{Scope: chests, Next: chests.Resource}, {Scope: vaults, Next: vaults.Resource}}
	d.set(nil, "token") // the document is about vaults
	p.SetTypes(both)
	p.checkRules(t.Context())
	requireHeld(t, p, "")
	p.SetTypes(both[:1])
	p.checkRules(t.Context())
	requireHeld(t, p, "not known to match yet")
	if err := p.BeginRequest(chests)(t.Context()); !errors.As(err, new(*source.HeldError)) {
		t.Errorf("a type that is still there: %v", err)
	}
	p.SetTypes(both)
	p.checkRules(t.Context())
	requireHeld(t, p, "")
}
