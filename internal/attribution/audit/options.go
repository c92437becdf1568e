package audit

import (
	"bytes"
	"net/url"
)

// requestOptions are the facts of an event from which it follows whether the request was a dry run, as the handlers of
// kube-apiserver decide it:
//
//   - create, update and patch, with apply and subresources: the query;
//   - delete and deletecollection: the body, if there is one, and then the query has no effect; else the query;
//   - eviction: the query or the body's deleteOptions.
//
// The value does not matter: an API server rejects every value but "All".
type requestOptions struct {
	uri       []byte
	hasBodies bool   // the level of the event includes request bodies, and they were not truncated
	hasBody   bool   // there is one
	bodyDry   bool   // dryRun of its delete options is not empty
	noted     string // by the admission policy, whether it is a dry run: "true" or "false"; "" if it did not match
}

// outcome returns the outcome of a request that was answered with success.
func (o *requestOptions) outcome(verb, subresource string) Outcome {
	deletes := verb == "delete" || verb == "deletecollection"
	switch {
	case deletes && (o.hasBody || !o.hasBodies), subresource == eviction && !hasDryRun(o.uri):
		return o.outcomeByBody()
	case hasDryRun(o.uri):
		return NotStored
	}
	return Stored
}

// outcomeByBody returns the outcome of a request whose body decides, or may decide.
func (o *requestOptions) outcomeByBody() Outcome {
	switch {
	case o.hasBody && o.bodyDry, !o.hasBodies && o.noted == "true":
		return NotStored
	case o.hasBody, !o.hasBodies && o.noted == "false":
		return Stored
	}
	return OutcomeUnknown
}

// hasDryRun reports whether the query of a request URI has the key dryRun, as net/url reads it for the API server. Only keys
// with an escape need the parser.
func hasDryRun(uri []byte) bool {
	_, query, _ := bytes.Cut(uri, []byte("?"))
	if !bytes.Contains(query, []byte("dryRun")) && !bytes.ContainsRune(query, '%') {
		return false
	}
	values, _ := url.ParseQuery(string(query)) // an API server ignores the error, too
	return values.Has("dryRun")
}

// scanBody reads the delete options in the body of a delete or an eviction at i.
func (e *Event) scanBody(b []byte, i int, o *requestOptions) {
	if e.Subresource != eviction {
		e.scanDeleteOptions(b, i, o)
		return
	}
	scanMembers(b, i, func(key []byte, i int) int {
		if string(key) == "deleteOptions" {
			return e.scanDeleteOptions(b, i, o)
		}
		return skipValue
	})
}

func (e *Event) scanDeleteOptions(b []byte, i int, o *requestOptions) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "dryRun":
			o.bodyDry = hasElements(b, i)
		case "preconditions":
			return scanUID(b, i, &e.RefUID)
		}
		return skipValue
	})
}
