// Package decode finds the objects in responses of the API server. Of each object it extracts what the rest of the program
// needs: the identity, the newest managedFields entries, digests of its parts, and the original JSON without
// metadata.managedFields. One pass over the bytes finds all of it.
//
// Objects are never unmarshaled. The JSON stays as the API server wrote it: numbers keep their digits, and fields that no Go
// type has are kept.
package decode
