package stream

import "strings"

// Covers reports whether a matches every subject that b matches. Both may have wildcards.
func Covers(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == "*" && y != ">" || x == y })
}

// Overlaps reports whether a and b match a subject in common. Both may have wildcards.
func Overlaps(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == "*" || y == "*" || x == y }) ||
		matchTokens(b, a, func(x, y string) bool { return x == "*" || y == "*" || x == y })
}

// matchTokens compares a and b token by token; ">" at the end of a matches the rest of b.
func matchTokens(a, b string, same func(x, y string) bool) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, x := range as {
		if i >= len(bs) {
			return false
		}
		if x == ">" {
			return true
		}
		if !same(x, bs[i]) {
			return false
		}
	}
	return len(as) == len(bs)
}
