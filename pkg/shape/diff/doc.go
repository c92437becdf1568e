// Package diff compares two states of an object without decoding them. It reports whether they differ at given paths, and
// lists where they differ: as JSON Pointers (RFC 6901), in which an item of a list is named by its key, with or without the
// values. The list of values is exact, so [Revert] makes the state before of the state after. It is the only comparison:
// what is emitted and what a terminal shows are the same. Objects with duplicate names are compared as a whole, because
// their values are ambiguous.
package diff
