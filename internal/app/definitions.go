package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// maxSampledObjects bounds the objects of a scope that are sampled for its paths.
const maxSampledObjects = 200

// PathChecker matches paths with types, by the CustomResourceDefinition of a type or, if it has none, by the OpenAPI
// document of its group and version. It reads each document once. Not safe for concurrent use.
type PathChecker struct {
	client    *apiserver.Client
	lenient   bool // without the right to get definitions, the OpenAPI document suffices, although it may lag behind
	documents map[groupVersion]openAPIDocument
}

type groupVersion struct{ group, version string }

// openAPIDocument is zero where the API server has none.
type openAPIDocument struct {
	tag     string
	schemas *shape.Schemas
	failure error // if it could not be read
}

type definition struct {
	identity string        // changes with every edit
	schema   *shape.Schema // nil if the API server has none
}

// noSchema begins the identity of types without a schema: their objects decide. The rest is the tag of the OpenAPI document
// that lacks the type, if there is one.
const noSchema = "none "

// NewPathChecker returns a checker that asks an API server.
func NewPathChecker(client *apiserver.Client) *PathChecker {
	return &PathChecker{client, true, map[groupVersion]openAPIDocument{}}
}

// CountPaths matches the paths of a rule with the types that it selects: with their schema, where the API server has one,
// and with some of their objects. A type that cannot be read counts as unknown.
func (p *PathChecker) CountPaths(ctx context.Context, policy shape.Policy, scopes []selection.Scope) (*shape.PathCounter, error) {
	counter, err := policy.NewPathCounter()
	if err != nil || len(counter.Paths) == 0 {
		return counter, err
	}
	counted := map[event.Resource]bool{}
	for _, s := range scopes {
		if !counted[s.Resource] {
			counted[s.Resource] = true
			if d, _, err := p.readDefinition(ctx, s.Resource, ""); err == nil && d.schema != nil {
				counter.AddSchema(d.schema)
			}
		}
		p.sample(ctx, s, counter)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return counter, nil
}

func (p *PathChecker) sample(ctx context.Context, s selection.Scope, counter *shape.PathCounter) {
	if e, err := p.client.Endpoint(s); err == nil {
		_ = e.Sample(ctx, maxSampledObjects, counter.AddObject) // the scope's own condition has the reason
	}
}

// readDefinition reads the definition of a type. unchanged is whether its identity is the one that is known already; it then
// has no schema.
func (p *PathChecker) readDefinition(ctx context.Context, r event.Resource, known string) (d definition, unchanged bool, err error) {
	if !selection.IsBuiltin(r) {
		text, err := p.client.Definition(ctx, r, known != "") // its schema may be a megabyte, and is often known
		verdict := apiserver.Classify(err)
		switch {
		case err == nil && known != "" && shape.DefinitionIdentity(text) == known:
			return definition{identity: known}, true, nil
		case err == nil && known != "":
			return p.readDefinition(ctx, r, "")
		case err == nil:
			d.schema, d.identity, err = shape.ParseDefinition(text, r.Version)
			return d, false, err
		case verdict != apiserver.NotServed && (verdict != apiserver.Forbidden || !p.lenient):
			return d, false, err
		}
	}
	document, unchanged, err := p.readDocument(ctx, groupVersion{r.Group, r.Version}, strings.TrimPrefix(known, noSchema))
	switch {
	case err != nil:
		return d, false, err
	case unchanged:
		return definition{identity: known}, true, nil
	case document.schemas != nil:
		d.schema, _ = document.schemas.Find(r.Group, r.Version, r.Kind)
	}
	if d.identity = document.tag; d.schema == nil {
		d.identity = noSchema + document.tag
	}
	return d, d.identity == known, nil
}

func (p *PathChecker) readDocument(ctx context.Context, of groupVersion, known string) (d openAPIDocument, unchanged bool, err error) {
	if d, read := p.documents[of]; read {
		return d, d.failure == nil && d.tag == known && known != "", d.failure
	}
	text, tag, err := p.client.OpenAPI(ctx, of.group, of.version, known)
	switch {
	case apiserver.Classify(err) == apiserver.NotServed:
		p.documents[of] = d
		return d, false, nil
	case err != nil:
		p.documents[of] = openAPIDocument{failure: err}
		return d, false, err
	case text == nil:
		return openAPIDocument{tag: tag}, true, nil // the schemas are not known, so the next type of the group reads them
	}
	if d.schemas, err = shape.ParseSchemas(text); err != nil {
		return d, false, err
	}
	if d.tag = tag; tag == "" {
		d.tag = fmt.Sprintf("%x", sha256.Sum256(text))
	}
	p.documents[of] = d
	return d, false, nil
}
