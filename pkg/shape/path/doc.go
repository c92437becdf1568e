// Package path parses the paths by which rules select values in objects, detects paths that cannot match anything, and
// combines paths into one [Tree], so that an object is walked only once.
package path
