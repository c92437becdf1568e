package kafka

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// properties writes the broker's configuration. The controllers' addresses are fixed ("static quorum"), so that all
// brokers can be formatted alike and start in any order.
func (b *Broker) properties(controllers []int, extra map[string]string) string {
	n := len(controllers)
	replicas := strconv.Itoa(min(n, 3))
	inSync := strconv.Itoa(max(1, min(n, 3)-1)) // one of three may be down
	all := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(b.id),
		"controller.quorum.voters":       voters(controllers),
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      fmt.Sprintf("PLAINTEXT://%s,CONTROLLER://%s", b.Address(), ports.Address(controllers[b.id-1])),
		"advertised.listeners":           "PLAINTEXT://" + b.Address(),
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":     "PLAINTEXT",
		"log.dirs":                       filepath.ToSlash(filepath.Join(b.dir, "data")),
		"auto.create.topics.enable":      "false",
		"default.replication.factor":     replicas,
		"min.insync.replicas":            inSync,

		// A killed broker may not come back before its session has ended: 9 s are long in a test.
		"broker.session.timeout.ms":    "4000",
		"broker.heartbeat.interval.ms": "500",

		// A broker ends itself when no controller has registered it within a minute, as none may on a machine that starves.
		// Here the wait for it to be ready decides.
		"initial.broker.registration.timeout.ms": "600000",

		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "4", // the usual 50 only take time
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    inSync,
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            inSync,
		"group.initial.rebalance.delay.ms":                 "0", // a test's consumer comes alone
	}
	maps.Copy(all, extra)
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s=%s\n", key, all[key])
	}
	return text.String()
}

func voters(controllers []int) string {
	list := make([]string, 0, len(controllers))
	for i, port := range controllers {
		list = append(list, fmt.Sprintf("%d@%s", i+1, ports.Address(port)))
	}
	return strings.Join(list, ",")
}
