package stream

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// maxLeaderSilence is the time without contact to a majority of replicas after which a leader is not trusted. A leader
// contacts its followers every second; they elect another one after four seconds or more without contact (nats-server,
// minElectionTimeoutDefault).
const maxLeaderSilence = 3 * time.Second

// checkLeader returns nil if the server that answered leads the stream and is in contact with half of the other replicas or
// more. Only then does it know all acknowledged messages. Others answer, too: a leader that is separated from its followers
// continues for ten seconds and more, and without a leader each replica answers for itself (DESIGN.md of the NATS sink).
func checkLeader(stream string, cluster *jetstream.ClusterInfo) error {
	if cluster == nil { // a single server
		return nil
	}
	if cluster.Leader == "" {
		return unknownEndError(stream, "no server leads it")
	}
	var silent []string
	for _, r := range cluster.Replicas {
		if r.Active == 0 || r.Active > maxLeaderSilence { // 0: no contact yet
			silent = append(silent, r.Name)
		}
	}
	if len(silent)*2 <= len(cluster.Replicas) {
		return nil
	}
	return unknownEndError(stream, fmt.Sprintf("server %s, its last leader, has no contact to %s", cluster.Leader, strings.Join(silent, " and ")))
}

func unknownEndError(stream, why string) error {
	return &sinks.UnavailableError{
		Code: condition.SinkUnreachable, After: connection.UnavailablePause, Reason: fmt.Sprintf("the end of stream %q is unknown: %s", stream, why),
		Remedy: "check that the NATS servers run and reach each other",
	}
}
