package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the ID that the process runs as: it does not exist on the host.
const user = "65532:65532"

// epoch is the time of every file, so that two builds are equal.
var epoch = time.Unix(0, 0).UTC()

// refName is the annotation by which tools find an image in an OCI layout (OCI image-spec, annotations.md).
const refName = "org.opencontainers.image.ref.name"

// image writes an image for each platform, under one index, as an OCI layout into out/image, with tags of both: some tools
// cannot choose from an index. Beside it are a tarball of each platform for "docker
// load", the SBOM and the notices.
func (b builder) image(ctx context.Context, out string, platforms []platform) error {
	dir := filepath.Join(out, "image")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	tagged := index
	err := b.each(ctx, out, platforms, func(p platform, program binary, notices []byte) error {
		one, err := b.assemble(p, program, notices)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
		tagged = mutate.AppendManifests(tagged, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: p.os, Architecture: p.arch}, Annotations: map[string]string{refName: tagOf(b.version) + "-" + p.arch},
		}})
		tag, err := name.NewTag("localhost/kubecdc/exporter:"+tagOf(b.version), name.WeakValidation)
		if err != nil {
			return err
		}
		return tarball.WriteToFile(filepath.Join(out, fmt.Sprintf("image-%s-%s.tar", p.os, p.arch)), tag, one)
	})
	if err != nil {
		return err
	}
	tagged = mutate.AppendManifests(tagged, mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{refName: tagOf(b.version)}},
	})
	if _, err := layout.Write(dir, tagged); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return os.WriteFile(filepath.Join(out, "image.digest"), []byte(digest.String()+"\n"), 0o644)
}

// tagOf makes a tag of a version: a tag has no "+".
func tagOf(version string) string {
	return string(bytes.ReplaceAll([]byte(version), []byte("+"), []byte("_")))
}

// assemble makes the image of one platform.
func (b builder) assemble(p platform, program binary, notices []byte) (v1.Image, error) {
	files := []file{
		{"etc/group", 0o644, []byte("nonroot:x:65532:\n")},
		{"etc/passwd", 0o644, []byte("nonroot:x:65532:65532:nonroot:/nonexistent:/sbin/nologin\n")},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certificates()},
		{"exporter", 0o755, program.text},
		{"licenses/THIRD-PARTY-NOTICES.txt", 0o644, notices},
	}
	text, err := archived(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{
		Created: v1.Time{Time: epoch}, CreatedBy: "tools/release",
	}})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, configOf(image, p, b.version))
}

func configOf(image v1.Image, p platform, version string) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = p.os, p.arch, v1.Time{Time: epoch}
	c.Config = v1.Config{
		User:         user,
		Entrypoint:   []string{"/exporter"},
		Cmd:          []string{"run", "--config", "/etc/kubecdc/config.yaml"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Env:          []string{"PATH=/"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "kubecdc exporter",
			"org.opencontainers.image.source":   "https://github.com/kubecdc/kubecdc",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version":  version,
		},
	}
	return c
}

// certificates are the roots that Mozilla trusts without conditions, as PEM, which cannot express any.
func certificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return b.Bytes()
}

// file is one file of an archive.
type file struct {
	name string
	mode int64
	text []byte
}

// archived writes files, and the directories they are in, as tar: by name, of root, without times.
func archived(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{".": true}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	for _, f := range files {
		for _, dir := range parents(f.name) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: epoch, Format: tar.FormatPAX}); err != nil {
				return nil, err
			}
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: epoch, Format: tar.FormatPAX}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	// Close writes the two zero blocks that end an archive (POSIX pax): without them GNU tar exits with 2.
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// parents are the directories above a file, from the outermost.
func parents(path string) (all []string) {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		all = append([]string{dir}, all...)
	}
	return all
}

// readLayout returns the index of all platforms from the OCI layout in out/image.
func readLayout(out string) (v1.ImageIndex, error) {
	tagged, err := layout.ImageIndexFromPath(filepath.Join(out, "image"))
	if err != nil {
		return nil, err
	}
	all, err := tagged.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, one := range all.Manifests {
		if one.MediaType.IsIndex() {
			return tagged.ImageIndex(one.Digest)
		}
	}
	return nil, fmt.Errorf("%s has %d images, expected an index of all platforms", filepath.Join(out, "image", "index.json"), len(all.Manifests))
}

// push uploads the layout in out/image, with all its platforms.
func push(ctx context.Context, out, to string) error {
	if to == "" {
		return errors.New("-to is empty: say REGISTRY/REPOSITORY:TAG")
	}
	reference, err := name.ParseReference(to)
	if err != nil {
		return err
	}
	index, err := readLayout(out)
	if err != nil {
		return fmt.Errorf("%w; make the image first", err)
	}
	if err := remote.WriteIndex(reference, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", reference.Context(), digest)
	return nil
}
