package apiserver

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

// podDecoder decodes Pods.
func podDecoder() *decode.Decoder {
	return decode.New(event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, false)
}

const threeEvents = `{"type":"ADDED","object":{"metadata":{"name":"a"}}}
{"type":"MODIFIED","object":{"metadata":{"name":"b"}}}

{"type":"DELETED","object":{"metadata":{"name":"c"}}}
`

func TestBatchHoldsWhatHasArrived(t *testing.T) {
	var stream strings.Builder
	for i := range 3 * maxBatchEvents {
		fmt.Fprintf(&stream, `{"type":"ADDED","object":{"metadata":{"name":"n%d","resourceVersion":"%d"}}}`+"\n", i, i+1)
	}
	c := newConnection(t.Context(), func() {}, io.NopCloser(strings.NewReader(stream.String())), podDecoder())
	defer c.Stop()
	total, batches := 0, 0
	for b := range c.Batches {
		batches++
		if total += len(b.Events); b.Position != fmt.Sprint(total) || len(b.Events) > maxBatchEvents {
			t.Errorf("a batch of %d ends at %s after %d events", len(b.Events), b.Position, total)
		}
	}
	if total != 3*maxBatchEvents || batches > 3*maxBatchEvents/10 {
		t.Errorf("%d events in %d batches", total, batches)
	}
}

func TestBatchIsBoundedInBytes(t *testing.T) {
	line := `{"type":"ADDED","object":{"metadata":{"name":"a"},"data":"` + strings.Repeat("x", maxBatchBytes) + `"}}` + "\n"
	c := newConnection(t.Context(), func() {}, io.NopCloser(strings.NewReader(line+line+line)), podDecoder())
	defer c.Stop()
	for b := range c.Batches {
		if len(b.Events) != 1 {
			t.Errorf("%d large events in one batch", len(b.Events))
		}
	}
}

func TestWildcardResourceVersionIsNoPosition(t *testing.T) {
	stream := `{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}` + "\n" +
		`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"0"}}}` + "\n" + `{"type":"BOOKMARK","object":{"metadata":{}}}` + "\n"
	c := newConnection(t.Context(), func() {}, io.NopCloser(strings.NewReader(stream)), podDecoder())
	defer c.Stop()
	for b := range c.Batches {
		if b.Position != "7" {
			t.Errorf("%d events end at %q", b.Read, b.Position)
		}
	}
}

func TestBatchEndsWithInitialEvents(t *testing.T) {
	mark := `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
	c := newConnection(t.Context(), func() {}, io.NopCloser(strings.NewReader(threeEvents+mark+threeEvents)), podDecoder())
	defer c.Stop()
	first, second := <-c.Batches, 0
	if !first.Listed || first.Position != "7" || len(first.Events) != 3 || first.Read != 4 {
		t.Errorf("%+v", first)
	}
	for b := range c.Batches {
		second += len(b.Events)
	}
	if second != 3 {
		t.Errorf("%d events after the mark, want 3", second)
	}
}

func TestStoppedConnectionReleasesEverything(t *testing.T) {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	c := newConnection(ctx, func() { cancel(); r.Close() }, r, podDecoder())
	go func() { _, _ = io.WriteString(w, threeEvents) }()
	<-c.Batches
	c.Stop() // goleak finds leftovers
}

func TestErrorEventsAreClassified(t *testing.T) {
	_, _, err := podDecoder().Stream(strings.NewReader(
		`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}` + "\n")).Next()
	if Classify(err) != Expired {
		t.Fatalf("%v", err)
	}
}

// TestCacheErrorWithReasonIsNotStarting uses the message of kube-apiserver when a conversion webhook is down.
func TestCacheErrorWithReasonIsNotStarting(t *testing.T) {
	err := apierrors.NewTooManyRequests("storage is (re)initializing: failed to list <unspecified>: conversion webhook for x failed", 1)
	if got := Classify(err); got != Interrupted {
		t.Errorf("verdict %d, want %d", got, Interrupted)
	}
}
