// Package s3server starts a server that speaks S3 and keeps everything in memory, for tests.
package s3server

import (
	"context"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// startWithin bounds a start, with the installation of the server.
const startWithin = 10 * time.Minute

// Start starts a server with an empty bucket, and returns its address. It accepts any keys. The test ends it.
func Start(t testing.TB, bucket string) (address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	python, err := build.S3(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = ports.Try(1, func(free []int) error {
		address = ports.Address(free[0])
		server, err := process.Start(ctx, process.Options{
			Name: "s3", Path: python, Args: []string{"-m", "moto.server", "-H", "127.0.0.1", "-p", strconv.Itoa(free[0])},
			Log: filepath.Join(t.TempDir(), "s3.log"), Ready: func(ctx context.Context) error { return makeBucket(ctx, address, bucket) },
		})
		if err == nil {
			t.Cleanup(func() {
				if err := server.Stop(); err != nil {
					t.Error(err)
				}
			})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// makeBucket makes a bucket, which succeeds as soon as the server answers. It needs no credentials.
func makeBucket(ctx context.Context, address, bucket string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+address+"/"+bucket, nil)
	if err != nil {
		return err
	}
	return process.ExpectOK(http.DefaultClient, request)
}
