// Package webhook posts changes as CloudEvents over HTTP to one URL. It depends on the contract of package sinks only, and
// pkg/sinks/WRITING.md uses it as the example.
//
// # Requests
//
// The format decides the mode (github.com/cloudevents/spec, cloudevents/bindings/http-protocol-binding.md): cloudevents is
// binary mode, with the attributes in ce- headers; cloudevents-structured is structured mode, and with Batch more than 1
// batched mode, a JSON array of events. A request is a POST; a response of 200 to 299 accepts all of it.
//
// # Order
//
// Objects hash to lanes. A lane has one request at a time, so that the changes of an object arrive in order; after a lost
// response the request is sent again, and the receiver may get its events twice, with the same ids.
//
// # Responses
//
//	400, 413, 422, 431           the event will never be accepted: rejected; of a batch only the event that is the cause
//	429, 503                     unavailable for the time in Retry-After
//	301 to 308, 401, 403, 404,   unavailable: the URL or the credentials are wrong
//	405, 407, 410, 415
//	502, 504, no connection      unavailable
//	anything else                the lane retries
//
// # Trust
//
// Redirects are not followed, because they could lead credentials and changes to another host. No proxy is used. Responses
// are read up to a limit, everything has a timeout, and files with secrets are read for each request or connection, so that
// rotated ones are used. No error contains a secret.
package webhook
