// Package webhook posts changes as CloudEvents over HTTP to one URL. It is written on the contract of package sinks alone,
// and docs/writing-a-sink.md walks through it.
//
// # Requests
//
// The format decides the mode (github.com/cloudevents/spec, cloudevents/bindings/http-protocol-binding.md): cloudevents is
// binary mode, the attributes in ce- headers; cloudevents-structured is structured mode, and with Batch more than 1 batched
// mode, a JSON array of events. A request is a POST; any answer of 200 to 299 accepts all of it.
//
// # Order
//
// Objects hash to lanes. A lane has one request at a time, so an object's changes arrive in order; a request whose answer is
// lost is sent again, so the receiver may see its events twice, under the same ids.
//
// # Failing
//
//	400, 413, 422, 431           this event will never be accepted: rejected; of a batch only the event that is the cause
//	429, 503                     the receiver wants to be left alone, for as long as its Retry-After says
//	301 to 308, 401, 403, 404,   the receiver is not what the configuration says, or the credentials are not good:
//	405, 407, 410, 415           unavailable until someone changes that
//	502, 504, no connection      unavailable
//	anything else                tried again on its lane
//
// # Trust
//
// Redirects are not followed: they could lead credentials and changes elsewhere. No proxy is used. Answers are read to a
// limit, everything has a timeout, and files with secrets are read for each request or connection, so that rotated ones are
// taken up. No secret is in any error.
package webhook
