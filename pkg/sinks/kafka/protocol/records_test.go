package protocol_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	magicAt      = 16
	crcAt        = 17
	attributesAt = 21
	batchHeader  = 61
)

// encodeBatches returns batches with so many changes each, at ascending offsets. Every fourth change is a delete, which a
// tombstone follows.
func encodeBatches(t testing.TB, codec string, sizes ...int) protocol.Batches {
	t.Helper()
	e, err := record.NewEncoder(format.JSON, true, record.Codecs[codec])
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	offset, n := 0, 0
	for _, size := range sizes {
		messages := make([]sinks.Message, size)
		for i := range messages {
			n++
			c := &event.Change{
				Type: event.Updated, Cluster: "c", Resource: event.Resource{Resource: "configmaps", Kind: "ConfigMap"}, Namespace: "shop",
				Name: fmt.Sprint("web-", n), UID: fmt.Sprint("u", n), ResourceVersion: fmt.Sprint(1000 + n),
				After: fmt.Appendf(nil, `{"data":{"a":"%0200d"}}`, n),
			}
			if n%4 == 0 {
				c.Type, c.After = event.Deleted, nil
			}
			messages[i].Change = c
		}
		one, _, records, err := e.Encode(nil, messages, 1<<20, 1<<20, record.ProducerSequence{})
		if err != nil {
			t.Fatal(err)
		}
		record.SetTimestamp(one, time.UnixMilli(1))
		binary.BigEndian.PutUint64(one, uint64(offset)) // as a broker does; the checksum does not cover it
		all, offset = append(all, one...), offset+records
	}
	return all
}

// describe returns a record as text.
func describe(r *protocol.Record) string {
	return fmt.Sprintf("%d %s=%q %s %s", r.Offset, r.Key, r.Value, r.HeaderValue("type"), r.HeaderValue("id"))
}

// TestRecordsAreReadWhateverCompressesThem reads the same records with each codec, from each offset.
func TestRecordsAreReadWhateverCompressesThem(t *testing.T) {
	var want []string
	for _, codec := range []string{"none", "zstd", "lz4", "snappy", "gzip"} {
		all := encodeBatches(t, codec, 1, 7, 1, 300, 2)
		var got []string
		tombstones := 0
		next, err := all.EachRecord(0, nil, func(r *protocol.Record) error {
			if r.Value == nil {
				tombstones++
			}
			if !r.Time.Equal(time.UnixMilli(1)) {
				t.Errorf("%s: the time is %v", codec, r.Time)
			}
			got = append(got, describe(r))
			return nil
		})
		if err != nil || next != int64(len(got)) {
			t.Fatalf("%s: %d records, the next one is %d: %v", codec, len(got), next, err)
		}
		if want == nil {
			want = got
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") || tombstones != 311/4 || len(got) != 311+tombstones {
			t.Errorf("%s: %d records and %d tombstones are read, others than without compression", codec, len(got), tombstones)
		}
		for from := range len(want) {
			first := ""
			_, err := all.EachRecord(int64(from), nil, func(r *protocol.Record) error {
				if first == "" {
					first = describe(r)
				}
				return nil
			})
			if err != nil || first != want[from] {
				t.Fatalf("%s: from %d on the first record is %s: %v", codec, from, first, err)
			}
		}
	}
}

// TestDamagedBatchIsNoRecord damages a batch in each way that is noticed. What is before it is read.
func TestDamagedBatchIsNoRecord(t *testing.T) {
	seal := func(b []byte) {
		binary.BigEndian.PutUint32(b[crcAt:], crc32.Checksum(b[attributesAt:], crc32.MakeTable(crc32.Castagnoli)))
	}
	for want, damage := range map[string]func(b []byte){
		"its checksum is wrong":            func(b []byte) { b[len(b)-1]++ },
		"it has version 1, want 2":         func(b []byte) { b[magicAt] = 1 },
		"its codec is 5, which is unknown": func(b []byte) { b[attributesAt+1] = 5; seal(b) },
		"invalid input":                    func(b []byte) { b[attributesAt+1] = 4; seal(b) },
		"a record is truncated":            func(b []byte) { b[batchHeader], b[batchHeader+1] = 0xff, 0xff; seal(b) },
	} {
		intact := encodeBatches(t, "none", 1)
		all := append(bytes.Clone(intact), intact...)
		damage(all[len(intact):])
		read := 0
		_, err := protocol.Batches(all).EachRecord(0, nil, func(*protocol.Record) error { read++; return nil })
		if err == nil || !strings.Contains(err.Error(), want) || read != 1 {
			t.Errorf("%d records are read, and the error is %v; want one, and %s", read, err, want)
		}
	}
}

func FuzzBatches(f *testing.F) {
	for _, codec := range []string{"none", "zstd", "lz4", "snappy", "gzip"} {
		f.Add([]byte(encodeBatches(f, codec, 1, 3)))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		all := protocol.Batches(bytes.Clone(input))
		if len(all) > batchHeader { // a checksum that fits, or the fuzzer gets no further
			size := min(len(all), 12+int(binary.BigEndian.Uint32(all[8:])))
			if size > batchHeader {
				binary.BigEndian.PutUint32(all[crcAt:], crc32.Checksum(all[attributesAt:size], crc32.MakeTable(crc32.Castagnoli)))
			}
		}
		all.BatchAt(1)
		last := int64(-1)
		_, _ = all.EachRecord(0, nil, func(r *protocol.Record) error {
			last = max(last, r.Offset)
			return nil
		})
	})
}
