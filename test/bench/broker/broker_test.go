package broker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestWhatIsWrittenIsCountedAndRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "address")
	topics := []string{"one", "two"}
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, file, topics, Partitions) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	address := awaitFile(t, file)
	write(t, address, topics, 500)

	r, err := Open(address, topics, Partitions)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := r.Count(ctx); n != 1000 || err != nil {
		t.Fatalf("count = %d, %v; want 1000", n, err)
	}
	read := map[string]int{}
	next := map[string]int64{}
	err = r.Read(ctx, func(record *kgo.Record) error {
		place := fmt.Sprint(record.Topic, "/", record.Partition)
		if record.Offset != next[place] {
			t.Errorf("%s: offset %d, want %d", place, record.Offset, next[place])
		}
		next[place]++
		read[record.Topic+string(record.Value)]++
		return nil
	})
	if err != nil || len(read) != 1000 {
		t.Errorf("read %d different records, %v; want 1000", len(read), err)
	}
}

// patience is how long the broker may stand still with the machine.
const patience = 3 * time.Minute

func awaitFile(t *testing.T, path string) string {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		text, err := os.ReadFile(path)
		if err == nil {
			return string(text)
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func write(t *testing.T, address string, topics []string, each int) {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP(address), RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Transport: transport, Balancer: &kafka.Hash{},
		ReadTimeout: patience, WriteTimeout: patience, // what is written again after that is there twice
	}
	var messages []kafka.Message
	for _, topic := range topics {
		for i := range each {
			key := fmt.Appendf(nil, "%d", i)
			messages = append(messages, kafka.Message{Topic: topic, Key: key, Value: key})
		}
	}
	if err := w.WriteMessages(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
