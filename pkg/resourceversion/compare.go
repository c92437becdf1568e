// Package resourceversion orders the resourceVersions of one resource. It is the only place where versions are compared.
package resourceversion

import (
	"cmp"
	"strings"
)

// Compare orders two versions of one resource: -1 if a is older than b, 1 if it is newer, else 0. Versions are integers up
// to 2^128-1 (KEP-5504), so they are compared as text: by length, then by bytes. ordered is false if one of them is not a
// positive integer without leading zeros, as an aggregated API may have it.
func Compare(a, b string) (order int, ordered bool) {
	if !IsOrdered(a) || !IsOrdered(b) {
		return 0, false
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)), true
}

// Order orders two versions as Compare does. Those that it cannot order count as equal.
func Order(a, b string) int {
	order, _ := Compare(a, b)
	return order
}

// IsOrdered reports whether Compare can order a version.
func IsOrdered(version string) bool {
	for i := range len(version) {
		if version[i] < '0' || version[i] > '9' {
			return false
		}
	}
	return version != "" && version[0] != '0'
}
