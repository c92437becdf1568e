package ports

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

func TestPortsAreDifferentAndFree(t *testing.T) {
	found, err := Free(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int]bool)
	for _, port := range found {
		if seen[port] {
			t.Errorf("port %d came twice", port)
		}
		seen[port] = true
		listener, err := net.Listen("tcp", Address(port))
		if err != nil {
			t.Error(err)
			continue
		}
		defer listener.Close()
	}
}

func TestAPortStaysItsProcessesOwnWhileNothingListens(t *testing.T) {
	found, err := Free(1)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := reserve(found[0]); again || err != nil {
		t.Errorf("port %d was given out again (%v)", found[0], err)
	}
}

func TestAPortTakenMeanwhileIsReplaced(t *testing.T) {
	for name, taken := range map[string]error{
		"the system's error": fmt.Errorf("listen: %w", syscall.EADDRINUSE),
		"the words of a log": errors.New("java.net.BindException: Address already in use"),
	} {
		calls := 0
		err := Try(1, func([]int) error {
			calls++
			if calls == 1 {
				return taken
			}
			return nil
		})
		if err != nil || calls != 2 {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
	}
}

func TestAnotherErrorIsNotTriedAgain(t *testing.T) {
	broken, calls := errors.New("no such flag"), 0
	err := Try(1, func([]int) error { calls++; return broken })
	if !errors.Is(err, broken) || calls != 1 {
		t.Fatalf("%d calls, %v", calls, err)
	}
}

func TestTryGivesUpAndSaysWhy(t *testing.T) {
	err := Try(1, func([]int) error { return syscall.EADDRINUSE })
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("Try: %v", err)
	}
}
