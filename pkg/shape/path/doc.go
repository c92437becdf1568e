// Package path reads the paths that rules name values within objects by, says which of them can match nothing, and makes one
// [Tree] of many, so that an object is walked once for all of them.
package path
