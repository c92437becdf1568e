package event

import (
	"strings"
	"testing"
)

// TestAStampIsOfOneObject: in another one, by name, kind or namespace, it is of no write.
func TestAStampIsOfOneObject(t *testing.T) {
	deployments, long := Resource{Group: "apps", Version: "v1", Resource: "deployments"}, strings.Repeat("x", 63)
	for _, test := range []struct {
		replaced        string
		version         string
		resource        Resource
		namespace, name string
		want            bool
	}{
		{"new:apps/deployments/shop/web", "", deployments, "shop", "web", true},
		{"new:apps/deployments/shop/web", "", deployments, "shop", "web-2", false},
		{"new:apps/deployments/shop/web", "", deployments, "other", "web", false},
		{"new:apps/deployments/shop/web", "", Resource{Group: "apps", Resource: "replicasets"}, "shop", "web", false},
		{"new:apps/deployments/shop/web", "", Resource{Group: "example.io", Resource: "deployments"}, "shop", "web", false},
		{"new:/namespaces//shop", "", Resource{Resource: "namespaces"}, "", "shop", true},
		{"new:/pods/shop/web-/", "", Resource{Resource: "pods"}, "shop", "web-x7k2p", true},
		{"new:/pods/shop/web-/", "", Resource{Resource: "pods"}, "shop", "web-x7k2p-copy", false},
		{"new:/pods/shop/web-/", "", Resource{Resource: "pods"}, "shop", "web-", false},
		{"new:/pods/shop/" + long + "/", "", Resource{Resource: "pods"}, "shop", long[:58] + "x7k2p", true},
		{"new:/pods/shop/", "", Resource{Resource: "pods"}, "shop", "", false},
		{"new", "", deployments, "shop", "web", false},
		{"new:apps/deployments/shop/web", "4711", deployments, "shop", "web", false},
		{"4711", "4711", deployments, "shop", "web", false},
		{"4711:apps/deployments/shop/web", "4711", deployments, "shop", "web", true},
		{"4711:apps/deployments/shop/web", "4712", deployments, "shop", "web", false},
		{"4711:apps/deployments/shop/web", "", deployments, "shop", "web", false},
		{"4711:apps/deployments/shop/web", "4711", Resource{Group: "apps", Resource: "replicasets"}, "shop", "web", false},
		{"4711:/pods/shop/web-/", "4711", Resource{Resource: "pods"}, "shop", "web-x7k2p", false},
	} {
		stamp, ok := ParseStamp(test.replaced + " alice")
		if got := stamp.IsOf(test.version, test.resource, test.namespace, test.name); got != test.want || !ok || stamp.User != "alice" {
			t.Errorf("%+v: %v, %+v", test, got, stamp)
		}
	}
}
