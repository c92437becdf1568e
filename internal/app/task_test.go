package app

import (
	"context"
	"errors"
	"testing"
)

func TestATaskThatFailsIsReportedByName(t *testing.T) {
	f := newFailure()
	p := startTask("journal", func(context.Context) error { return errors.New("disk gone") }, f.reportError)
	<-f.occurred
	if got := f.firstError().Error(); got != "journal: disk gone" {
		t.Errorf("reported %q", got)
	}
	p.stop()
}

func TestAStoppedTaskIsNoFailure(t *testing.T) {
	f := newFailure()
	p := startTask("source", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, f.reportError)
	p.stop()
	if err := f.firstError(); err != nil {
		t.Errorf("reported %v", err)
	}
}

func TestOnlyTheFirstFailureIsKept(t *testing.T) {
	f := newFailure()
	f.reportError(errors.New("first"))
	f.reportError(errors.New("second"))
	if got := f.firstError().Error(); got != "first" {
		t.Errorf("kept %q", got)
	}
}
