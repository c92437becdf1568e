package kafka

import (
	"maps"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// formerLayouts is how many partitions topics had for the previous process, while messages of that may be published again:
// its records are in these. It is safe for concurrent use.
type formerLayouts struct {
	mu      sync.Mutex
	newest  uint64                              // messages above this offset were never given to the previous process
	settled uint64                              // everything up to this offset is settled, as far as known
	topics  map[string]map[protocol.TopicID]int // by name: several if the topic was recreated
}

// restore sets the layouts that the previous process knew last: a topic that is not recreated only grows.
func (m *formerLayouts) restore(acks map[cluster.Partition]*partitionAcks, newest uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest, m.topics = newest, map[string]map[protocol.TopicID]int{}
	for partition, p := range acks {
		if m.topics[partition.Topic] == nil {
			m.topics[partition.Topic] = map[protocol.TopicID]int{}
		}
		_, lane := p.place(partition)
		m.topics[partition.Topic][p.topic] = max(m.topics[partition.Topic][p.topic], lane.of.Partitions)
	}
}

// partitionsOf returns how many partitions a topic had, while that matters; else 0. now is nil while its layout is not
// known: then a topic that was recreated may be any of those.
func (m *formerLayouts) partitionsOf(topic string, now *cluster.Layout) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.topics[topic]
	switch {
	case m.settled >= m.newest:
		m.topics = nil
	case now != nil:
		return of[now.ID]
	case len(of) == 1:
		return slices.Collect(maps.Values(of))[0]
	}
	return 0
}

// recordSettled records that no message up to low will be published again.
func (m *formerLayouts) recordSettled(low uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = low
}

// stateFormat is the format of the stored state, see internal/journal/FORMAT.md.
const stateFormat = 1

// storedParts is what a stored state has: the transactional ID with the producer IDs that it had, and what was acknowledged
// in each partition.
type storedParts struct {
	transactionalID string
	producers       []int64
	acks            map[cluster.Partition]*partitionAcks
	schemas         *storedSchemas // nil in a format without; the state of a sink is one of its format
}

// storedSchemas are the IDs that a registry has given to the schemas of topics.
type storedSchemas struct {
	source string // of the registry and the schemas
	topics []topicSchemas
}

type topicSchemas struct {
	topic string
	ids   record.SchemaIDs
}

func codeSchemas(f *form.Coder, s *storedSchemas) {
	f.CodeText(&s.source)
	form.CodeList(f, &s.topics, 3, func(f *form.Coder, t *topicSchemas) {
		f.CodeText(&t.topic)
		form.CodeNumber(f, &t.ids.Key)
		form.CodeNumber(f, &t.ids.Value)
	})
}

// storedAcks is what was acknowledged in a partition. All of it is to be compared.
type storedAcks struct {
	partition cluster.Partition
	acks      *partitionAcks
}

func codeState(f *form.Coder, parts *storedParts) {
	f.CodeFormat(stateFormat)
	f.CodeText(&parts.transactionalID)
	form.CodeList(f, &parts.producers, 1, (*form.Coder).CodeVarint)
	list := make([]storedAcks, 0, len(parts.acks))
	for partition, acks := range parts.acks {
		list = append(list, storedAcks{partition, acks})
	}
	form.CodeList(f, &list, 23, codeAcks)
	if parts.schemas != nil {
		codeSchemas(f, parts.schemas)
	}
	if !f.Decoding {
		return
	}
	parts.acks = map[cluster.Partition]*partitionAcks{}
	for _, a := range list {
		parts.acks[a.partition] = a.acks
	}
}

func codeAcks(f *form.Coder, a *storedAcks) {
	if f.Decoding {
		a.acks = &partitionAcks{doubt: ackUncompared}
	}
	p := a.acks
	f.CodeText(&a.partition.Topic)
	topic := p.topic
	if f.CodeFixed(topic[:]); f.Decoding {
		p.topic = topic
	}
	form.CodeNumber(f, &a.partition.Index)
	form.CodeNumber(f, &p.leaderEpoch)
	form.CodeNumber(f, &p.unplaced)
	form.CodeNumber(f, &p.begin.end)
	form.CodeNumber(f, &p.begin.partitions)
	form.CodeList(f, &p.marks, 7, func(f *form.Coder, m *ackMark) {
		form.CodeNumber(f, &m.first)
		form.CodeNumber(f, &m.last)
		form.CodeNumber(f, &m.partitions)
		form.CodeNumber(f, &m.origin.Producer)
		form.CodeNumber(f, &m.origin.Epoch)
		form.CodeNumber(f, &m.origin.Sequence)
		form.CodeNumber(f, &m.origin.End)
	})
}

// storedParts returns what is known of the transactional ID.
func (f *fence) storedParts() storedParts {
	if f == nil {
		return storedParts{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return storedParts{transactionalID: f.transactional.ID, producers: slices.Collect(maps.Keys(f.producers))}
}

// encodeState encodes the parts with what was acknowledged in each partition.
func (a *ackLog) encodeState(parts storedParts) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	parts.acks = a.partitions
	return form.EncodeValue(nil, codeState, &parts)
}
