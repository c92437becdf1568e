package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var root = builder{source: filepath.Join("..", ".."), version: "v9.8.7"}

// built makes the image of both architectures in a directory of its own.
func built(t *testing.T) (dir string, index v1.ImageIndex) {
	t.Helper()
	dir = t.TempDir()
	if err := root.image(t.Context(), dir, []platform{{"linux", "amd64"}, {"linux", "arm64"}}); err != nil {
		t.Fatal(err)
	}
	index, err := readLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, index
}

// The image is built twice for all promises about it: linking takes seconds.
func TestTheImage(t *testing.T) {
	dir, index := built(t)
	again, _ := built(t)
	t.Run("TwoBuildsAreEqual", func(t *testing.T) { equalTrees(t, dir, again) })
	t.Run("TheLayoutHasItsTag", func(t *testing.T) { checkTag(t, dir, index) })
	t.Run("EveryBlobIsWhatItsDigestSays", func(t *testing.T) {
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
	})
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if len(manifest.Manifests) != len(machines) {
		t.Fatalf("%d images, want one for each of %v", len(manifest.Manifests), machines)
	}
	for _, one := range manifest.Manifests {
		t.Run(one.Platform.Architecture, func(t *testing.T) {
			image, err := index.Image(one.Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkConfig(t, image, one.Platform.Architecture)
			layer, files := checkFiles(t, image, machines[one.Platform.Architecture])
			checkReaders(t, dir, one.Platform.Architecture, layer, files)
		})
	}
	t.Run("ItsSBOMNamesWhatIsInIt", func(t *testing.T) { checkSBOM(t, filepath.Join(dir, "sbom-linux-amd64.cdx.json")) })
	t.Run("ItIsPushedWithAllPlatforms", func(t *testing.T) { checkPush(t, dir, index) })
}

// checkTag looks at the entries of index.json by which skopeo, podman and umoci find an image.
func checkTag(t *testing.T, dir string, index v1.ImageIndex) {
	t.Helper()
	tagged, err := layout.ImageIndexFromPath(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(tagged); err != nil {
		t.Error(err)
	}
	all, err := tagged.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	platforms, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]v1.Hash{"v9.8.7": digest}
	for _, one := range platforms.Manifests {
		want["v9.8.7-"+one.Platform.Architecture] = one.Digest
	}
	got := map[string]v1.Hash{}
	for _, one := range all.Manifests {
		got[one.Annotations["org.opencontainers.image.ref.name"]] = one.Digest
	}
	if !maps.Equal(got, want) {
		t.Errorf("index.json has %v, want %v", got, want)
	}
	if written, err := os.ReadFile(filepath.Join(dir, "image.digest")); err != nil || strings.TrimSpace(string(written)) != digest.String() {
		t.Errorf("image.digest has %s (%v), want %s", written, err, digest)
	}
}

// equalTrees compares two directories byte by byte.
func equalTrees(t *testing.T, one, other string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(one, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		a, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(other, strings.TrimPrefix(path, one)))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds (%v)", strings.TrimPrefix(path, one), err)
		}
		return nil
	})
	if err != nil || files < 8 {
		t.Errorf("%d files compared (%v)", files, err)
	}
}

func checkConfig(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != arch || c.Config.User != user || !slices.Equal(c.Config.Entrypoint, []string{"/exporter"}) ||
		!slices.Equal(c.Config.Cmd, []string{"run", "--config", "/etc/kubecdc/config.yaml"}) {
		t.Errorf("%+v", c)
	}
}

// checkFiles looks at what is in the image: a static binary for its machine, roots to trust, licenses, and nothing to run
// besides. It returns the layer and its files.
func checkFiles(t *testing.T, image v1.Image, machine elf.Machine) (layer []byte, files map[string][]byte) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers (%v)", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	layer, err = io.ReadAll(content)
	if err := errors.Join(err, content.Close()); err != nil {
		t.Fatal(err)
	}
	var headers []*tar.Header
	headers, files = filesOf(t, bytes.NewReader(layer))
	for _, h := range headers {
		if h.Mode&0o6022 != 0 || h.Uid != 0 || h.Typeflag == tar.TypeReg && h.Mode&0o111 != 0 && h.Name != "exporter" {
			t.Errorf("%s has mode %o, owner %d", h.Name, h.Mode, h.Uid)
		}
	}
	checkContent(t, files, machine)
	return layer, files
}

func checkContent(t *testing.T, files map[string][]byte, machine elf.Machine) {
	t.Helper()
	program, err := elf.NewFile(bytes.NewReader(files["exporter"]))
	if err != nil {
		t.Fatal(err)
	}
	if libraries, err := program.ImportedLibraries(); program.Machine != machine || len(libraries) > 0 || err != nil {
		t.Errorf("machine %s, libraries %v (%v)", program.Machine, libraries, err)
	}
	if !bytes.Contains(files["exporter"], []byte("Europe/Berlin")) {
		t.Error("the binary has no time zones")
	}
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"]) {
		t.Error("no root certificate")
	}
	if n := bytes.Count(files["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("only %d root certificates", n)
	}
	for _, module := range []string{"k8s.io/client-go ", "github.com/cockroachdb/pebble/v2 ", "Go's standard library"} {
		if !bytes.Contains(files["licenses/THIRD-PARTY-NOTICES.txt"], []byte("\n"+module)) {
			t.Errorf("the notices lack %s", module)
		}
	}
	if n := bytes.Count(files["licenses/THIRD-PARTY-NOTICES.txt"], []byte("Apache License")); n < 20 {
		t.Errorf("the notices have the text of only %d licenses", n)
	}
}

// checkReaders has programs of others unpack an image of the layout.
func checkReaders(t *testing.T, dir, arch string, layer []byte, files map[string][]byte) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(archive, layer, 0o600); err != nil {
		t.Fatal(err)
	}
	eachReader(t, true, func(t *testing.T, r reader) {
		from := archive
		if r.image {
			from = filepath.Join(dir, "image") + ":" + root.version + "-" + arch
		}
		if err := r.unpack(t, from, t.TempDir(), files); err != nil {
			t.Error(err)
		}
	})
}

func checkSBOM(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Component.Version != root.version || len(*bom.Components) < 50 {
		t.Errorf("component %+v with %d parts", bom.Metadata.Component, len(*bom.Components))
	}
	for _, want := range []string{"std", "k8s.io/client-go", "github.com/nats-io/nats.go"} {
		found := slices.ContainsFunc(*bom.Components, func(c cyclonedx.Component) bool {
			return c.Name == want && c.Version != "" && strings.HasPrefix(c.PackageURL, "pkg:golang/"+want+"@")
		})
		if !found {
			t.Errorf("it lacks %s", want)
		}
	}
}

// checkPush uploads the image to a registry on this machine and compares what it has then.
func checkPush(t *testing.T, dir string, index v1.ImageIndex) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	to := strings.TrimPrefix(server.URL, "http://") + "/kubecdc/exporter:v9.8.7"
	if err := push(t.Context(), dir, to); err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(to)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(reference)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pushed.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := index.Digest(); err != nil || got != want {
		t.Errorf("pushed %s, want %s (%v)", got, want, err)
	}
}

// TestArchiveIsUnpackedByTarProgramsAndHasChecksums makes the archive of one platform.
func TestArchiveIsUnpackedByTarProgramsAndHasChecksums(t *testing.T) {
	dir := t.TempDir()
	if err := root.archives(t.Context(), dir, []platform{{"linux", "amd64"}}); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"kubecdc_9.8.7_linux_amd64.tar.gz", "sbom-linux-amd64.cdx.json", "THIRD-PARTY-NOTICES.txt"} {
		if !strings.Contains(string(sums), "  "+file+"\n") {
			t.Errorf("no checksum of %s in\n%s", file, sums)
		}
	}
	t.Run("provenance", func(t *testing.T) { checkProvenance(t, dir) })
	t.Run("signature", func(t *testing.T) { checkSignature(t, dir) })
	t.Run("manifests", func(t *testing.T) { checkManifests(t, dir) })
	archive := filepath.Join(dir, "kubecdc_9.8.7_linux_amd64.tar.gz")
	packed, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	content, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	_, files := filesOf(t, content)
	eachReader(t, false, func(t *testing.T, r reader) {
		unpacked := t.TempDir()
		if err := r.unpack(t, archive, unpacked, files); err != nil {
			t.Fatal(err)
		}
		version := exec.CommandContext(t.Context(), filepath.Join(unpacked, "kubecdc_9.8.7_linux_amd64", "exporter"), "version")
		if text, err := version.CombinedOutput(); err != nil || !bytes.Contains(text, []byte(root.version)) {
			t.Errorf("the exporter: %v\n%s", err, text)
		}
	})
}
