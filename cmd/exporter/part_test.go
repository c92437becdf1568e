package main

import (
	"context"
	"errors"
	"net"
	"testing"
)

func listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestAPartThatFailsIsReportedByName(t *testing.T) {
	f := newFailure()
	p := start("journal", func(context.Context) error { return errors.New("disk gone") }, f.report)
	<-f.c
	if got := f.get().Error(); got != "journal: disk gone" {
		t.Errorf("reported %q", got)
	}
	p.stop()
}

func TestAStoppedPartIsNoFailure(t *testing.T) {
	f := newFailure()
	p := start("source", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, f.report)
	p.stop()
	if err := f.get(); err != nil {
		t.Errorf("reported %v", err)
	}
}

func TestOnlyTheFirstFailureIsKept(t *testing.T) {
	f := newFailure()
	f.report(errors.New("first"))
	f.report(errors.New("second"))
	if got := f.get().Error(); got != "first" {
		t.Errorf("kept %q", got)
	}
}
