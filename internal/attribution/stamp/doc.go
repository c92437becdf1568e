// Package stamp has the admission policy that writes the author of each write into the object, and finds out since which
// version it is in force.
//
// # What the policy does
//
// A write of an object that changes it gets a stamp: the version that it replaces, the object, and the user. Every other
// write keeps the stamp that the object had, whatever the client sent: those of the control plane's own components, those
// of subresources, and those that change nothing. So a client cannot choose a stamp of an object. One that names another
// object passes, because components copy annotations from one object to another, and repeat that until the copy is there.
//
// # What a stamp proves
//
// The version that a stamp names as replaced is the one before only if the write was stamped. A write that was not has the
// stamp of an earlier write, which names an older version. Nothing in a stamp shows that the policy was in force, so that is
// proven separately, see Guard.
package stamp
