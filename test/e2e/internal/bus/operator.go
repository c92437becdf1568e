package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// answersWithin bounds what an operator waits for one answer. It is far above what it takes, and no measurement.
const answersWithin = 5 * time.Minute

// Operate connects to a NATS server as an operator that makes and changes streams, and waits as long as a busy machine
// takes. hangUp ends the connection.
func Operate(url string) (js jetstream.JetStream, hangUp func(), err error) {
	connection, err := nats.Connect(url, nats.Timeout(answersWithin), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	js, err = jetstream.New(connection, jetstream.WithDefaultTimeout(answersWithin))
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	return js, connection.Close, nil
}
