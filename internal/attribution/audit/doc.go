// Package audit reads the audit log of API servers (audit.k8s.io/v1): the few facts of an event that identify the author of
// an object's version.
//
// [Scan] and [Append] walk the raw bytes once. Of request and response bodies they keep the identities of objects and
// nothing else: no value of a Secret and no token ever gets into an [Event], an error or a log line.
package audit
