package resourceversion_test

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

func TestVersionsAboveSixtyFourBitsAreOrdered(t *testing.T) {
	ascending := []string{"1", "9", "10", "18446744073709551615", "18446744073709551616", "18446744073709551617",
		"340282366920938463463374607431768211455"}
	for i, a := range ascending {
		for j, b := range ascending {
			order, ordered := resourceversion.Compare(a, b)
			if !ordered || (order < 0) != (i < j) || (order > 0) != (i > j) {
				t.Errorf("Compare(%s, %s) = %d, %t", a, b, order, ordered)
			}
		}
	}
}

func TestOtherTextsAreNotOrdered(t *testing.T) {
	for _, version := range []string{"", "0", "00", "01", "-1", "+1", " 1", "1a", "0x1", "1.0"} {
		for _, pair := range [][2]string{{version, "1"}, {"1", version}} {
			if order, ordered := resourceversion.Compare(pair[0], pair[1]); order != 0 || ordered {
				t.Errorf("Compare(%q, %q) = %d, %t", pair[0], pair[1], order, ordered)
			}
		}
	}
}
