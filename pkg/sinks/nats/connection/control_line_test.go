package connection

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestLateRefusalBlamesNoLineOfTheNextLink: the library reports the refusal of one link when the next has sent shorter
// lines.
func TestLateRefusalBlamesNoLineOfTheNextLink(t *testing.T) {
	message := func(length int) *nats.Msg { return &nats.Msg{Subject: strings.Repeat("s", length)} }
	var known controlLines
	lost, next := sentLines{known: &known}, sentLines{known: &known}
	if err := lost.admitMessage(message(5000)); err != nil {
		t.Fatal(err)
	}
	if err := next.admitMessage(message(3000)); err != nil {
		t.Fatal(err)
	}
	lost.recordRefusal()
	if err := next.admitMessage(message(3000)); err != nil {
		t.Errorf("a line that no server refused: %v", err)
	}
	if next.admitMessage(message(5000)) == nil {
		t.Error("the refused line is sent again")
	}
}
