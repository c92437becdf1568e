package shape

import (
	"fmt"
	"strings"
	"testing"
)

// copiesOf returns annotations with a value, by their names.
func copiesOf(value string, names ...string) string {
	var members []string
	for i, name := range names {
		members = append(members, fmt.Sprintf(`%q:"{\"n\":%d,\"was\":\"%s\"}"`, name, i, value))
	}
	return strings.Join(members, ",")
}

// TestARotatedValueStaysHiddenHoweverManyCopiesThereAre in one object, or have been of one annotation since: what is hidden
// is forgotten only when it is gone.
func TestARotatedValueStaysHiddenHoweverManyCopiesThereAre(t *testing.T) {
	for _, number := range []int{9, 33, 200} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			eachRotation(t, func(t *testing.T, r *rotation) {
				names := make([]string, number)
				for i := range names {
					names[i] = fmt.Sprintf("example.com/state-%d", i)
				}
				r.policy.SecretMetadata.Annotations = names
				r.restartWith(r.policy, oneKey)
				all := "{" + copiesOf("hunter-old", names...) + "}"
				r.update("hunter-old", all)
				r.update("hunter-new", all)
				r.restartWith(r.policy, oneKey)
				r.update("hunter-newer", all)
				r.update("hunter-newer", "{"+copiesOf("hunter-old", names[:number/2]...)+"}")
			})
		})
	}
	t.Run("one follows each rotation", func(t *testing.T) {
		eachRotation(t, func(t *testing.T, r *rotation) {
			r.update("hunter-old", "{"+copiesOf("hunter-old", "example.com/state")+"}")
			for i := range 200 {
				value := fmt.Sprintf("hunter-%d", i)
				r.update(value, "{"+copiesOf("hunter-old", "example.com/state")+","+copiesOf(value, "example.com/other")+"}")
				if i%50 == 0 {
					r.restartWith(r.policy, oneKey)
				}
			}
		})
	})
}
