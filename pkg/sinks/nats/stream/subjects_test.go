package stream

import "testing"

func TestSubjectsCoverAndOverlapAsOnTheServer(t *testing.T) {
	for _, test := range []struct {
		a, b             string
		covers, overlaps bool
	}{
		{"k8s.>", "k8s.*.*", true, true},
		{"k8s.*.*", "k8s.>", false, true},
		{"k8s.>", "k8s", false, false},
		{">", "k8s", true, true},
		{"k8s.*", "k8s.a", true, true},
		{"k8s.a", "k8s.*", false, true},
		{"k8s.*.pods", "k8s.core.*", false, true},
		{"k8s.*", "k8s.*.*", false, false},
		{"other.>", "k8s.*", false, false},
		{"a.*.c", "*.b.>", false, true},
	} {
		if got := Covers(test.a, test.b); got != test.covers {
			t.Errorf("covers(%s, %s) is %v", test.a, test.b, got)
		}
		if got := Overlaps(test.a, test.b); got != test.overlaps {
			t.Errorf("overlaps(%s, %s) is %v", test.a, test.b, got)
		}
		if got := Overlaps(test.b, test.a); got != test.overlaps {
			t.Errorf("overlaps(%s, %s) is %v", test.b, test.a, got)
		}
	}
}
