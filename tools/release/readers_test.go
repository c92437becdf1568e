package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// reader is a program that unpacks what a release has, as builders and scripts run it.
type reader struct {
	name    string
	provide func(context.Context) (program string, env []string, err error)
	image   bool // it takes LAYOUT:TAG, in place of the path of a tar archive
	args    func(from, to string) []string
	below   string // the directory that it makes for the files
}

// readers are those of the checks below. Go's own, which all other checks use, accepts an archive without an end.
var readers = []reader{
	{name: "GNUTar", provide: findTar, args: extract},
	{name: "bsdtar", provide: build.Bsdtar, args: extract},
	{name: "umoci", provide: build.Umoci, image: true, below: "rootfs", args: func(from, to string) []string {
		return []string{"unpack", "--rootless", "--image", from, to}
	}},
}

func findTar(context.Context) (program string, env []string, err error) {
	program, err = exec.LookPath("tar")
	return program, nil, err
}

func extract(from, to string) []string { return []string{"-x", "-f", from, "-C", to} }

// eachReader runs a check for every reader of tar archives, or of images too.
func eachReader(t *testing.T, images bool, check func(t *testing.T, r reader)) {
	t.Helper()
	for _, r := range readers {
		if images || !r.image {
			t.Run(r.name, func(t *testing.T) { check(t, r) })
		}
	}
}

// unpack unpacks into an empty directory, and fails if a file differs from what Go's reader has found.
func (r reader) unpack(t *testing.T, from, to string, want map[string][]byte) error {
	t.Helper()
	require.Integration(t)
	program, env, err := r.provide(t.Context())
	if err != nil {
		require.Skip(t, err.Error())
	}
	command := exec.CommandContext(t.Context(), program, r.args(from, to)...)
	command.Env = append(os.Environ(), env...)
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	got := map[string][]byte{}
	files := os.DirFS(filepath.Join(to, r.below))
	err = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			got[path], err = fs.ReadFile(files, path)
		}
		return err
	})
	if err == nil && !maps.EqualFunc(got, want, bytes.Equal) {
		err = fmt.Errorf("it has unpacked %v, expected the content of %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	return err
}

// filesOf reads the files of a tar archive.
func filesOf(t *testing.T, content io.Reader) (headers []*tar.Header, files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, files
		} else if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadersRefuseWhatIsCutOff feeds archives that lack their end to the check of a release, which has to notice it.
func TestReadersRefuseWhatIsCutOff(t *testing.T) {
	want := map[string][]byte{"etc/one": bytes.Repeat([]byte("1"), 700), "two": bytes.Repeat([]byte("2"), 700)}
	var files []file
	for name, text := range want {
		files = append(files, file{name, 0o644, text})
	}
	whole, err := archived(files)
	if err != nil {
		t.Fatal(err)
	}
	const end, padding = 1024, 1024 - 700
	for _, c := range []struct {
		name    string
		content []byte
		refused []string
	}{
		{"whole", whole, nil},
		{"without its end and the padding before it", whole[:len(whole)-end-padding], []string{"GNUTar", "bsdtar"}},
		{"cut in its last file", whole[:len(whole)-end-padding-1], []string{"GNUTar", "bsdtar", "umoci"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			archive := filepath.Join(t.TempDir(), "layer.tar")
			if err := os.WriteFile(archive, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			image := imageOf(t, c.content)
			eachReader(t, true, func(t *testing.T, r reader) {
				from := archive
				if r.image {
					from = image
				}
				err := r.unpack(t, from, t.TempDir(), want)
				if (err != nil) != slices.Contains(c.refused, r.name) {
					t.Errorf("%v, expected to be refused by %v", err, c.refused)
				}
				t.Log(err)
			})
		})
	}
}

// imageOf writes an image of one layer, and returns LAYOUT:TAG.
func imageOf(t *testing.T, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{Layer: static.NewLayer(content, types.OCIUncompressedLayer)})
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, configOf(image, platform{"linux", "amd64"}, root.version))
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: image, Descriptor: v1.Descriptor{Annotations: map[string]string{refName: "cut"}},
	})
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	return dir + ":cut"
}
