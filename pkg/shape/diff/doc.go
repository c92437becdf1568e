// Package diff compares two states of an object as the bytes they are: whether they differ where a rule looks, and what
// makes one of the other, as JSON Pointers, JSON Patch (RFC 6902) or JSON Merge Patch (RFC 7396). An object in which a name
// occurs twice is compared with nothing: no reader can tell which value counts.
package diff
