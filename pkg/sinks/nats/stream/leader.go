package stream

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// maxLeaderSilence is after how long without a word from most replicas a leader is not believed. Followers elect another one when
// they have not heard of theirs for four seconds or longer (nats-server, minElectionTimeoutDefault); it reaches them every
// second.
const maxLeaderSilence = 3 * time.Second

// checkLeader says nil of an answer by a leader that most replicas follow. Only that one knows all that was acknowledged, but others
// answer, too: a leader that is parted from the others goes on for ten seconds and more, and while nobody leads every
// replica speaks for itself.
func checkLeader(stream string, cluster *jetstream.ClusterInfo) error {
	if cluster == nil { // a server that stands alone
		return nil
	}
	if cluster.Leader == "" {
		return unknownEndError(stream, "no server leads it")
	}
	var silent []string
	for _, r := range cluster.Replicas {
		if r.Active == 0 || r.Active > maxLeaderSilence { // 0: it was never heard
			silent = append(silent, r.Name)
		}
	}
	if len(silent)*2 <= len(cluster.Replicas) {
		return nil
	}
	return unknownEndError(stream, fmt.Sprintf("server %s, which led it, does not hear %s", cluster.Leader, strings.Join(silent, " and ")))
}

func unknownEndError(stream, why string) error {
	return &sinks.UnavailableError{After: connection.UnavailablePause, Reason: fmt.Sprintf("nobody knows where stream %q ends: %s; see that the NATS servers "+
		"run and reach each other", stream, why)}
}
