// Package ratelimit decides when to try again. It does not decide what to try, never gives up, and knows nothing of changes,
// sinks or queues.
//
//	Backoff  one failing item among many: longer waits after every failure, with jitter
//	Gate     an unavailable peer: no attempts except one probe at a time
//
// A [Backoff] has the methods of a workqueue.TypedRateLimiter of k8s.io/client-go/util/workqueue without importing it. No
// type of this package owns a goroutine: waits block the caller until its context ends. All types are safe for concurrent
// use. They use the time package, so that testing/synctest controls them; randomness is a parameter.
package ratelimit
