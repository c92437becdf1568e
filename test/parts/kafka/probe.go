package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	probeTimeout  = 5 * time.Second
	correlation   = 7
	maximumAnswer = 1 << 20 // what is larger is not Kafka
)

// Answers returns nil if the broker answers an ApiVersions request, the first that every client sends. It asks once
// and does not wait.
func (b *Broker) Answers(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.Address())
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, bounded := ctx.Deadline()
	if !bounded {
		deadline = time.Now().Add(probeTimeout)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(apiVersionsRequest()); err != nil {
		return err
	}
	return readAPIVersions(conn)
}

// apiVersionsRequest is version 0 of the request, which every broker takes: its length, then API key 18, version 0,
// correlation ID, and no client ID.
func apiVersionsRequest() []byte {
	request := binary.BigEndian.AppendUint32(nil, 10)
	request = binary.BigEndian.AppendUint16(request, 18)
	request = binary.BigEndian.AppendUint16(request, 0)
	request = binary.BigEndian.AppendUint32(request, correlation)
	return binary.BigEndian.AppendUint16(request, 0xffff)
}

// readAPIVersions reads the answer: its length, correlation ID, error code, and a list that only must not be empty.
func readAPIVersions(r io.Reader) error {
	var header struct {
		Length, Correlation uint32
		Code                int16
		APIs                int32
	}
	if err := binary.Read(r, binary.BigEndian, &header); err != nil {
		return fmt.Errorf("answer to ApiVersions: %w", err)
	}
	if header.Length > maximumAnswer || header.Correlation != correlation || header.Code != 0 || header.APIs < 1 {
		return fmt.Errorf("answer to ApiVersions is not one of a Kafka broker that is ready: %+v", header)
	}
	return nil
}
