package stream

import "strings"

// Covers says whether every subject that b stands for is one that a stands for.
func Covers(a, b string) bool {
	return compare(a, b, func(x, y string) bool { return x == "*" && y != ">" || x == y })
}

// Meets says whether there is a subject that both a and b stand for.
func Meets(a, b string) bool {
	return compare(a, b, func(x, y string) bool { return x == "*" || y == "*" || x == y }) ||
		compare(b, a, func(x, y string) bool { return x == "*" || y == "*" || x == y })
}

// compare compares tokens in pairs; ">" at the end of a takes all that is left of b.
func compare(a, b string, same func(x, y string) bool) bool {
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
