// Package audit reads what API servers write into their audit log (audit.k8s.io/v1): the few facts of an event that tell who
// wrote which version of which object.
//
// [Scan] and [Each] walk the raw bytes once. Of bodies they keep the identities of objects and nothing else: no value of a
// Secret and no token ever gets into an [Event], an error or a log line.
package audit
