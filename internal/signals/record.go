package signals

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Record is a record of a Kafka topic that a signal arrived in.
type Record struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Place is the key in [Book.Positions] of the partition.
func (r Record) Place() string { return Place(r.Topic, r.Partition) }

// Place is the key in [Book.Positions] of a partition.
func Place(topic string, partition int32) string { return topic + "/" + strconv.Itoa(int(partition)) }

// IsPlace reports whether a key is that of a partition of a topic.
func IsPlace(place, topic string) bool {
	partition, found := strings.CutPrefix(place, topic+"/")
	return found && !strings.Contains(partition, "/")
}

// After is the position after the record, as the reader of topics stores it.
func (r Record) After() string { return strconv.FormatInt(r.Offset+1, 10) }

// Request returns the request in the value of the record, which was written at a time. One without an ID gets one that
// follows from the record, so that it is the same whenever that is read. A value that is no request has the reason in
// Invalid.
func (r Record) Request(value []byte, written time.Time) Request {
	request := Request{}
	err := json.Unmarshal(value, &request)
	switch {
	case len(value) > maxBodyBytes:
		request = Request{Invalid: fmt.Sprintf("the record has %d bytes, and a signal has %d at most", len(value), maxBodyBytes)}
	case err != nil:
		request = Request{Invalid: "the record is no signal: " + err.Error()}
	}
	request.Record = &r
	if !isID(request.ID) {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d/%d", r.Topic, r.Partition, r.Offset, written.UnixMilli()))
		request.ID = strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:idLength]
	}
	return request
}
