package format

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestACloudEventIsNeverEmpty(t *testing.T) {
	for _, f := range []Format{CloudEvents, CloudEventsStructured} {
		if got := f.AppendValue(nil, &event.Change{}); !json.Valid(got) || len(got) < 2 {
			t.Errorf("%v: a change without a body became %q, a tombstone in Kafka", f, got)
		}
	}
}

func TestAttributeNamesAreLegal(t *testing.T) {
	legal := regexp.MustCompile(`^[a-z0-9]{1,20}$`)
	seen := map[string]bool{"datacontenttype": true, "dataschema": true, "data": true, "data_base64": true}
	for _, a := range Attributes() {
		if !legal.MatchString(a.Name) || seen[a.Name] {
			t.Errorf("%q is not a name for an attribute, or is taken", a.Name)
		}
		seen[a.Name] = true
	}
}

func attributeValue(t *testing.T, name string, c *event.Change) string {
	t.Helper()
	for _, a := range Attributes() {
		if a.Name == name {
			return string(a.Append(nil, c))
		}
	}
	t.Fatalf("no attribute %q", name)
	return ""
}

func TestSequencesSortLikeVersions(t *testing.T) {
	c := sampleChange()
	last := ""
	for _, rv := range []string{"0", "9", "10", "99999999999", "18446744073709551615"} {
		c.ResourceVersion = rv
		got := attributeValue(t, "sequence", c)
		if len(got) != 20 || got <= last {
			t.Errorf("resourceVersion %s has the sequence %q, which does not follow %q", rv, got, last)
		}
		last = got
	}
	for _, rv := range []string{"", "abc", "1.5", "-1", "184467440737095516150"} {
		if c.ResourceVersion = rv; attributeValue(t, "sequence", c) != "" {
			t.Errorf("resourceVersion %q has the sequence %q, want none", rv, attributeValue(t, "sequence", c))
		}
	}
}

func TestTheSourceIsAURIReferenceForAnyCluster(t *testing.T) {
	c := sampleChange()
	for cluster, want := range map[string]string{
		"prod":     "/clusters/prod/apps/v1/deployments",
		"a b/ü?#%": "/clusters/a%20b%2F%C3%BC%3F%23%25/apps/v1/deployments",
	} {
		if c.Cluster = cluster; attributeValue(t, "source", c) != want {
			t.Errorf("cluster %q: source %s, want %s", cluster, attributeValue(t, "source", c), want)
		}
	}
}

func TestFormatsKeepTheirNames(t *testing.T) {
	for name, want := range map[string]Format{"json": JSON, "cloudevents": CloudEvents, "cloudevents-structured": CloudEventsStructured} {
		if f, err := Parse(name); f != want || err != nil || f.String() != name {
			t.Errorf("%s is %v (%v)", name, f, err)
		}
	}
	if _, err := Parse("xml"); err == nil {
		t.Error("xml was accepted as a format")
	}
}

func FuzzCloudEventsStayValidForAnyName(f *testing.F) {
	f.Add("web", "prod", "\x00\"\\\xff€", "7")
	f.Fuzz(func(t *testing.T, name, cluster, uid, rv string) {
		c := sampleChange()
		c.Name, c.Cluster, c.UID, c.ResourceVersion = name, cluster, uid, rv
		out := CloudEventsStructured.AppendValue(nil, c)
		var back struct {
			ID, Subject, Cluster, UID string
			Data                      struct{ ID, Name, Cluster, UID string }
		}
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		subject := c.Namespace + "/" + back.Data.Name
		if name == "" {
			subject = "" // a control record
		}
		if back.ID != back.Data.ID || back.Subject != subject || back.Cluster != back.Data.Cluster || back.UID != back.Data.UID {
			t.Fatalf("the attributes and the data differ: %s", out)
		}
	})
}
