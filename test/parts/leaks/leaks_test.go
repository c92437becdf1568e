package leaks

import (
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestAGoroutineThatStaysIsNamed(t *testing.T) {
	end := make(chan struct{})
	go stay(end)
	defer close(end)
	if err := find(time.Now()); err == nil || !strings.Contains(err.Error(), "leaks.stay") {
		t.Errorf("found %v, want the goroutine in stay", err)
	}
}

func TestAGoroutineThatEndsLateIsNoLeak(t *testing.T) {
	end := make(chan struct{})
	go stay(end)
	time.AfterFunc(time.Second, func() { close(end) }) // after goleak's own patience
	if err := find(time.Now().Add(patience)); err != nil {
		t.Error(err)
	}
}

func stay(end <-chan struct{}) { <-end }
