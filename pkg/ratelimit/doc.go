// Package ratelimit decides when to try again. It never decides what to try, never gives up, and knows nothing of
// changes, sinks or queues.
//
// Three things answer "when":
//
//	Backoff  one failing item among many: wait longer after every failure, with jitter
//	Bucket   everything, always: no more than so many a second
//	Gate     the far side is away: nobody tries, except one probe at a time
//
// A [Backoff] has the methods of a workqueue.TypedRateLimiter of k8s.io/client-go/util/workqueue without importing it.
// No type here owns a goroutine; whoever waits does so in its own, until its context ends. All types are safe for
// concurrent use. Time is the time package's, so that testing/synctest can hold it; randomness is passed in.
package ratelimit
