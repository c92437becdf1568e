package stream

import "strings"

// Covers says whether every subject that b stands for is one that a stands for.
func Covers(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == "*" && y != ">" || x == y })
}

// Overlaps says whether there is a subject that both a and b stand for.
func Overlaps(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == "*" || y == "*" || x == y }) ||
		matchTokens(b, a, func(x, y string) bool { return x == "*" || y == "*" || x == y })
}

// matchTokens compares tokens in pairs; ">" at the end of a takes all that is left of b.
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
