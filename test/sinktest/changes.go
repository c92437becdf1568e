package sinktest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// changeFactory makes changes that no other test or run makes: its tag is part of every ID.
type changeFactory struct {
	tag    string
	offset uint64
}

func newChangeFactory() *changeFactory {
	return &changeFactory{tag: "t" + strings.ToLower(rand.Text()[:10])}
}

// ownsID reports whether a change ID is one of this factory.
func (f *changeFactory) ownsID(id string) bool { return strings.Contains(id, f.tag) }

func (f *changeFactory) newMessage(c *event.Change) sinks.Message {
	f.offset++
	return sinks.Message{Offset: f.offset, Change: c}
}

// resources that objects are spread over: core and named groups, namespaced and not.
var resources = []event.Resource{
	{Version: "v1", Resource: "pods", Kind: "Pod"},
	{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
	{Version: "v1", Resource: "nodes", Kind: "Node"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles", Kind: "ClusterRole"},
}

// newChange returns a version of an object. Version 1 is the addition.
func (f *changeFactory) newChange(object, version int) *event.Change {
	resource := resources[object%len(resources)]
	c := &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "sinktest", Resource: resource,
		Name: fmt.Sprintf("%s:web.%d", f.tag, object), UID: fmt.Sprintf("%s-%d", f.tag, object),
		ResourceVersion: strconv.Itoa(object*1_000_000 + version), Generation: int64(version),
		ObservedAt: time.Date(2026, 1, 2, 3, 4, 5, version, time.UTC),
	}
	if resource.Kind == "Pod" || resource.Kind == "Deployment" {
		c.Namespace = "shop"
	}
	if version == 1 {
		c.Type, c.Delta = event.Added, event.DeltaAdded
	}
	c.After = fmt.Appendf(nil, `{"kind":%q,"metadata":{"name":%q},"version":%d}`, resource.Kind, c.Name, version)
	return c
}

// newDeleted returns the deletion of an object: no After.
func (f *changeFactory) newDeleted(object, version int) *event.Change {
	c := f.newChange(object, version)
	c.Type, c.Delta = event.Deleted, event.DeltaDeleted
	c.Before, c.After = c.After, nil
	return c
}

// newGap returns a control record, which has neither name nor UID.
func (f *changeFactory) newGap() *event.Change {
	return &event.Change{
		Type: event.Gap, Cluster: "sinktest", Resource: resources[0], ResourceVersion: "9",
		ObservedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Gap:        &event.GapInfo{From: f.tag, To: "9", Reason: `the API server answered "too old"`},
	}
}

// newLargeChange returns a change with an After of size bytes.
func (f *changeFactory) newLargeChange(object, version, size int) *event.Change {
	c := f.newChange(object, version)
	const frame = `{"kind":"ConfigMap","data":""}`
	filling := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size-len(frame)]
	c.After = slices.Concat([]byte(frame[:len(frame)-2]), filling, []byte(`"}`))
	return c
}

// overwriteBatch overwrites a batch after Publish has returned, as a caller does that reuses its memory.
func overwriteBatch(batch []sinks.Message) {
	for i := range batch {
		c := batch[i].Change
		for _, body := range [][]byte{c.Before, c.After} {
			for j := range body {
				body[j] = '#'
			}
		}
		*c = event.Change{Type: "scribbled", Name: "scribbled", UID: "scribbled"}
		batch[i] = sinks.Message{}
	}
}

// cloneBatch returns a deep copy of a batch.
func cloneBatch(batch []sinks.Message) []sinks.Message {
	own := make([]sinks.Message, len(batch))
	for i, m := range batch {
		own[i] = sinks.Message{Offset: m.Offset, Change: m.Change.Clone(), Topic: m.Topic}
	}
	return own
}
