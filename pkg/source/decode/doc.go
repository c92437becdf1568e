// Package decode finds the objects in what an API server writes, and takes of each what the rest of the program needs:
// identity, the newest managedFields entries, digests of its parts, and the JSON as it was written without
// metadata.managedFields. One pass over the bytes finds all of it.
//
// Objects are never decoded. What the API server wrote arrives: numbers keep their digits and fields that no Go type knows
// are kept.
package decode
