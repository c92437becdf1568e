// Package floor is the least that a client does which brings changes from an API server to Kafka: it copies the frames of
// watches, one record each, and neither parses nor compresses them. It keeps no position and no order but that of the
// frames. What a pipeline costs is measured in multiples of this.
package floor
