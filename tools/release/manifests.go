package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// download is one archive as a package manager finds it.
type download struct{ OS, Arch, Name, URL, SHA256 string }

// manifests writes the plugin manifest of krew and the formula of Homebrew for the archives in a directory, which will be
// found under an address. Nothing is published by that, and without an address there is nothing to write.
func (b builder) manifests(out, address string, platforms []platform) error {
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("the flag -download is %q, want the https address of the directory that will hold the archives", address)
	}
	version := strings.TrimPrefix(b.version, "v")
	data := struct {
		Version   string
		Downloads []download
	}{Version: version}
	for _, p := range platforms {
		name := archiveName(b.version, p)
		text, err := os.ReadFile(filepath.Join(out, name+".tar.gz"))
		if err != nil {
			return fmt.Errorf("there is no archive of %s, make it first: %w", p, err)
		}
		data.Downloads = append(data.Downloads, download{
			p.os, p.arch, name, strings.TrimSuffix(address, "/") + "/" + name + ".tar.gz", fmt.Sprintf("%x", sha256.Sum256(text)),
		})
	}
	for name, text := range map[string]*template.Template{"cdc.yaml": krewManifest, "kubecdc.rb": formula} {
		var b bytes.Buffer
		if err := text.Execute(&b, data); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// krewManifest makes "kubectl cdc", see krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
var krewManifest = template.Must(template.New("cdc.yaml").Parse(`apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: cdc
spec:
  version: v{{.Version}}
  homepage: https://github.com/kubecdc/kubecdc
  shortDescription: Show what changes in a cluster
  description: |
    "kubectl cdc tap" shows each change of the selected resources with what
    differs, straight from the cluster and with nothing on disk. The program
    is the exporter of kubecdc, change data capture for Kubernetes.
  platforms:
{{- range .Downloads}}
  - selector:
      matchLabels:
        os: {{.OS}}
        arch: {{.Arch}}
    uri: {{.URL}}
    sha256: {{.SHA256}}
    files:
    - from: {{.Name}}/*
      to: .
    bin: exporter
{{- end}}
`))

// formula installs the program as kubecdc, see docs.brew.sh/Formula-Cookbook.
var formula = template.Must(template.New("kubecdc.rb").Funcs(template.FuncMap{
	"system":    func(os string) string { return map[string]string{"darwin": "macos", "linux": "linux"}[os] },
	"processor": func(arch string) string { return map[string]string{"amd64": "intel", "arm64": "arm"}[arch] },
}).Parse(`class Kubecdc < Formula
  desc "Change data capture for Kubernetes"
  homepage "https://github.com/kubecdc/kubecdc"
  version "{{.Version}}"
  license "Apache-2.0"
{{range .Downloads}}
  on_{{system .OS}} do
    on_{{processor .Arch}} do
      url "{{.URL}}"
      sha256 "{{.SHA256}}"
    end
  end
{{end}}
  def install
    bin.install "exporter" => "kubecdc"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/kubecdc version")
  end
end
`))
