package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkProvenance: it names the archive by its digest, and has no time.
func checkProvenance(t *testing.T, dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "provenance.intoto.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != sumOf(t, filepath.Join(dir, s.Subject[0].Name)) {
		t.Errorf("subjects %+v", s.Subject)
	}
	if s.Predicate.BuildDefinition.ExternalParameters["version"] != root.version || s.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("provenance %s", text)
	}
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// checkSignature verifies with OpenSSL, as cosign verify-blob does with the public key.
func checkSignature(t *testing.T, dir string) {
	private, public := filepath.Join(t.TempDir(), "key.pem"), filepath.Join(t.TempDir(), "key.pub")
	openssl(t, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", private)
	openssl(t, "pkey", "-in", private, "-pubout", "-out", public)
	if err := sign(dir, private); err != nil {
		t.Fatal(err)
	}
	encoded, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS.sig"))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(encoded)))
	if err != nil {
		t.Fatal(err)
	}
	raw := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(raw, signature, 0o600); err != nil {
		t.Fatal(err)
	}
	openssl(t, "dgst", "-sha256", "-verify", public, "-signature", raw, filepath.Join(dir, "SHA256SUMS"))

	verify := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	verify.Dir = dir
	if text, err := verify.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, text)
	}
	for name, key := range map[string]string{"no key": "", "no such file": private + ".absent", "a public key": public} {
		if err := sign(dir, key); err == nil || strings.Contains(err.Error(), "MF") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func openssl(t *testing.T, arguments ...string) {
	t.Helper()
	if text, err := exec.CommandContext(t.Context(), "openssl", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("openssl %v: %v\n%s", arguments, err, text)
	}
}

// checkManifests: both name the archive by address and checksum, and what they install from it is there.
func checkManifests(t *testing.T, dir string) {
	const address = "https://downloads.example.com/v9.8.7"
	only := []platform{{"linux", "amd64"}}
	if err := root.manifests(dir, address, only); err != nil {
		t.Fatal(err)
	}
	const name = "kubecdc_9.8.7_linux_amd64"
	sum := sumOf(t, filepath.Join(dir, name+".tar.gz"))
	for file, wanted := range map[string][]string{
		"cdc.yaml": {"version: v9.8.7\n", "uri: " + address + "/" + name + ".tar.gz\n", "sha256: " + sum + "\n", "from: " + name + "/*\n", "bin: exporter\n"},
		"kubecdc.rb": {"version \"9.8.7\"\n", "url \"" + address + "/" + name + ".tar.gz\"\n", "sha256 \"" + sum + "\"\n", "on_linux do\n    on_intel do\n",
			"bin.install \"exporter\" => \"kubecdc\"\n"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wanted {
			if strings.Count(string(text), want) != 1 {
				t.Errorf("%s does not have %q once:\n%s", file, want, text)
			}
		}
	}
	plugin := filepath.Join(t.TempDir(), "kubectl-cdc") // as krew links it
	unpacked := t.TempDir()
	if text, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, name+".tar.gz"), "-C", unpacked).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := os.Symlink(filepath.Join(unpacked, name, "exporter"), plugin); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.CommandContext(t.Context(), plugin, "tap", "--help").CombinedOutput(); err != nil || !strings.Contains(string(text), "tap") {
		t.Errorf("kubectl cdc tap --help: %v\n%s", err, text)
	}
	for _, wrong := range []string{"", "downloads", "http://downloads.example.com", "https://"} {
		if err := root.manifests(dir, wrong, only); err == nil {
			t.Errorf("the address %q was accepted", wrong)
		}
	}
	if err := root.manifests(dir, address, []platform{{"darwin", "arm64"}}); err == nil {
		t.Error("manifests of an archive that is not there")
	}
}
