// Package diff compares two states of an object without decoding them. It reports whether they differ at given paths, and
// describes the differences as JSON Pointers, JSON Patch (RFC 6902) or JSON Merge Patch (RFC 7396). Objects with duplicate
// names are not compared, because their values are ambiguous.
package diff
