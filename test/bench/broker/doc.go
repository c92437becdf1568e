// Package broker is the Kafka side of a run: a broker in memory (franz-go's kfake) for the systems to write to, and a
// reader that counts records and, afterwards, returns them.
//
// The broker acknowledges at once and keeps everything in memory; it is the same for every system and stands for no
// real broker's speed. The reader is franz-go's client, which none of the measured systems uses.
package broker
