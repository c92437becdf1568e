package consumer_test

import (
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/consumer"
)

// A stream that ends after a lost journal: objects that the new snapshot lacks are removed.
func Example() {
	const stream = `{"id":"prod/u1/7/added","type":"added","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod","namespace":"shop","name":"web","uid":"u1","resourceVersion":"7","observedAt":"2026-01-02T03:04:05Z","delta":"Added","after":{"spec":{}}}
{"id":"prod/u2/8/added","type":"added","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod","namespace":"shop","name":"db","uid":"u2","resourceVersion":"8","observedAt":"2026-01-02T03:04:06Z","delta":"Added","after":{"spec":{}}}
{"id":"prod/pods@/12/gap","type":"gap","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod","resourceVersion":"12","observedAt":"2026-01-02T03:09:00Z","gap":{"from":"","to":"12","reason":"the journal was broken"}}
{"id":"prod/pods@s2//snapshot.begin","type":"snapshot.begin","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod","observedAt":"2026-01-02T03:09:00Z","snapshot":{"id":"s2"}}
{"id":"prod/u1/7/snapshot/s2","type":"snapshot","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod","namespace":"shop","name":"web","uid":"u1","resourceVersion":"7","observedAt":"2026-01-02T03:09:00Z","delta":"Replaced","snapshot":{"id":"s2"},"after":{"spec":{}}}
{"id":"prod/pods@s2/12/snapshot.end","type":"snapshot.end","cluster":"prod","group":"","version":"v1","resource":"pods","kind":"Pod","resourceVersion":"12","observedAt":"2026-01-02T03:09:01Z","snapshot":{"id":"s2","position":"12","count":1,"digest":""}}`

	var table consumer.Table
	for line := range strings.Lines(stream) { // one partition after the other, or mixed
		record, err := consumer.Parse([]byte(line))
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := table.Apply(record); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, o := range table.Objects(consumer.Resource{Cluster: "prod", Resource: "pods"}) {
		fmt.Println(o.Namespace, o.Name, o.ResourceVersion)
	}
	fmt.Println(len(table.Gaps()), "gap")
	// Output:
	// shop web 7
	// 1 gap
}
