package sinks

import (
	"hash/fnv"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestKeyHashIsFNV1aAsItWasWhenCursorsWereStored(t *testing.T) {
	for _, name := range []string{"web", "web.eu", "", "\u00e9"} {
		c := &event.Change{Resource: event.Resource{Group: "apps", Resource: "deployments"}, Namespace: "shop", Name: name}
		h := fnv.New64a()
		h.Write([]byte(c.Key()))
		if got, want := KeyHash(c), h.Sum64(); got != want {
			t.Errorf("%s hashes to %d, want %d", c.Key(), got, want)
		}
	}
}
