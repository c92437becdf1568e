package app

import (
	"context"
	"errors"
	"testing"
)

func TestATaskThatFailsIsReportedByName(t *testing.T) {
	f := newFailure()
	p := start("journal", func(context.Context) error { return errors.New("disk gone") }, f.report)
	<-f.c
	if got := f.get().Error(); got != "journal: disk gone" {
		t.Errorf("reported %q", got)
	}
	p.stop()
}

func TestAStoppedTaskIsNoFailure(t *testing.T) {
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
