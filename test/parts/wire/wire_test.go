package wire

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestWhoComesWhileTheWireIsCutIsCutToo: Close may come between Accept and the moment when both ends are known.
func TestWhoComesWhileTheWireIsCutIsCutToo(t *testing.T) {
	w, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	near, far := net.Pipe()
	w.attach(near, far)
	for _, end := range []net.Conn{near, far} {
		if err := end.SetDeadline(time.Now()); !errors.Is(err, io.ErrClosedPipe) { // fails on what is closed
			t.Errorf("an end is open: %v", err)
		}
	}
}
