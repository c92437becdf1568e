package event

import "testing"

func TestIDIsAPureFunctionOfIdentity(t *testing.T) {
	base := Change{Type: Updated, Cluster: "prod", UID: "u1", ResourceVersion: "7", Resource: Resource{Group: "apps", Resource: "deployments"}}
	same := base
	same.After, same.Coalesced, same.Namespace = []byte(`{}`), true, "elsewhere"
	if base.ID() != same.ID() {
		t.Fatalf("body or flags changed the ID: %q and %q", base.ID(), same.ID())
	}
	for what, vary := range map[string]func(*Change){
		"cluster":         func(c *Change) { c.Cluster = "test" },
		"uid":             func(c *Change) { c.UID = "u2" },
		"resourceVersion": func(c *Change) { c.ResourceVersion = "8" },
		"type":            func(c *Change) { c.Type = Deleted },
	} {
		c := base
		vary(&c)
		if c.ID() == base.ID() {
			t.Errorf("another %s gave the same ID %q", what, c.ID())
		}
	}
}

// TestReemittedVersionsHaveAnotherID ensures that dropping duplicates by ID is correct after a lost journal, edited rules
// and a resync: they emit a version that the consumer has already seen and must apply again.
func TestReemittedVersionsHaveAnotherID(t *testing.T) {
	ids := map[string]string{}
	for what, c := range map[string]Change{
		"snapshot s1": {Type: Snapshot, Snapshot: &SnapshotInfo{ID: "s1"}}, "snapshot s2": {Type: Snapshot, Snapshot: &SnapshotInfo{ID: "s2"}},
		"left in p1": {Type: Deleted, Left: true, Pass: "p1"}, "left in p2": {Type: Deleted, Left: true, Pass: "p2"}, "deleted": {Type: Deleted},
		"entered": {Type: Added, Pass: "p1"}, "added": {Type: Added}, "sync p1": {Type: Sync, Pass: "p1"}, "sync p2": {Type: Sync, Pass: "p2"},
	} {
		c.Cluster, c.UID, c.ResourceVersion = "prod", "u1", "7"
		if other := ids[c.ID()]; other != "" {
			t.Errorf("%s and %s share the ID %q", what, other, c.ID())
		}
		ids[c.ID()] = what
	}
}

// TestChangesWithinASnapshotKeepTheirID: only records of type snapshot include the snapshot in their ID. Other changes that
// are emitted while a snapshot is interrupted happened once.
func TestChangesWithinASnapshotKeepTheirID(t *testing.T) {
	alone := Change{Type: Updated, Cluster: "prod", UID: "u1", ResourceVersion: "7"}
	within := alone
	within.Snapshot = &SnapshotInfo{ID: "s1"}
	if alone.ID() != within.ID() {
		t.Errorf("%q and %q", alone.ID(), within.ID())
	}
}

func TestGapsOfDifferentResourcesOrPositionsDiffer(t *testing.T) {
	gap := func(resource, from, to string) string {
		c := Change{Type: Gap, Cluster: "c", Resource: Resource{Resource: resource}, ResourceVersion: to, Gap: &GapInfo{From: from, To: to}}
		return c.ID()
	}
	ids := map[string]bool{gap("pods", "1", "5"): true, gap("nodes", "1", "5"): true, gap("pods", "2", "5"): true, gap("pods", "1", "6"): true}
	if len(ids) != 4 {
		t.Fatalf("different gaps share IDs: %v", ids)
	}
}

func TestKeyDistinguishesObjects(t *testing.T) {
	c := Change{Cluster: "one", Resource: Resource{Resource: "pods"}, Namespace: "a", Name: "b"}
	if got, want := c.Key(), "one/core/pods/a/b"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
	d := Change{Cluster: "two", Resource: Resource{Group: "apps", Resource: "deployments"}, Name: "b"}
	if got, want := d.Key(), "two/apps/deployments//b"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
}

func TestDigestsDistinguishSetsInAnyOrder(t *testing.T) {
	of := func(objects ...[4]string) string {
		var d Digest
		for _, o := range objects {
			d.Add(o[0], o[1], o[2], o[3])
		}
		return d.String()
	}
	a, b := [4]string{"ns", "a", "u1", "1"}, [4]string{"ns", "b", "u2", "2"}
	if of(a, b) != of(b, a) {
		t.Error("the order of the objects changed the digest")
	}
	for _, other := range [][][4]string{{}, {a}, {b}, {a, a}, {a, {"ns", "b", "u2", "3"}}, {a, {"ns", "b", "u3", "2"}}} {
		if of(other...) == of(a, b) {
			t.Errorf("%v and %v have the same digest", other, [][4]string{a, b})
		}
	}
}

func TestControlRecordsOfOneSnapshotDiffer(t *testing.T) {
	of := func(typ Type, resource, snapshot string) string {
		c := Change{Type: typ, Cluster: "c", Resource: Resource{Resource: resource}, Snapshot: &SnapshotInfo{ID: snapshot}}
		return c.ID()
	}
	ids := map[string]bool{
		of(SnapshotBegin, "pods", "1"): true, of(SnapshotEnd, "pods", "1"): true,
		of(SnapshotBegin, "pods", "2"): true, of(SnapshotBegin, "nodes", "1"): true,
	}
	if len(ids) != 4 {
		t.Fatalf("different control records share IDs: %v", ids)
	}
}

// TestAHeldRecordGoesOnceToEverySink: at once to those that do not wait for its author, and as a copy to those that do.
func TestAHeldRecordGoesOnceToEverySink(t *testing.T) {
	held := &HeldInfo{Sinks: []string{"trail"}}
	released := &HeldInfo{Sinks: held.Sinks, Released: true}
	for _, names := range [][]string{{"trail", ""}, {"renamed", "trail"}} {
		if !held.Skips(names...) || released.Skips(names...) {
			t.Errorf("%q does not get the copy alone", names)
		}
	}
	if held.Skips("other", "") || !released.Skips("other", "") || (*HeldInfo)(nil).Skips("other") {
		t.Error("another sink does not get the record alone")
	}
}
