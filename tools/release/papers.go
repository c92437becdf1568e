package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// writePapers writes the SBOM of one platform's binary and the notices of what is in it, and returns the notices.
func (b builder) writePapers(ctx context.Context, out string, p platform, info *debug.BuildInfo) ([]byte, error) {
	bom, err := b.sbom(info)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(out, fmt.Sprintf("sbom-%s-%s.cdx.json", p.os, p.arch)), bom, 0o644); err != nil {
		return nil, err
	}
	notices, err := b.notices(ctx, info)
	if err != nil {
		return nil, err
	}
	return notices, os.WriteFile(filepath.Join(out, "THIRD-PARTY-NOTICES.txt"), notices, 0o644)
}

// sbom lists the modules recorded in the binary, as CycloneDX. It has neither a time nor a serial number, so that equal
// builds have equal ones.
func (b builder) sbom(info *debug.BuildInfo) ([]byte, error) {
	bom := cyclonedx.NewBOM()
	main := component(info.Main.Path, b.version)
	main.Type = cyclonedx.ComponentTypeApplication
	bom.Metadata = &cyclonedx.Metadata{Component: &main}
	parts := []cyclonedx.Component{component("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range modules(info) {
		parts = append(parts, component(m.Path, m.Version))
	}
	bom.Components = &parts
	var text bytes.Buffer
	e := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON)
	e.SetPretty(true)
	err := e.Encode(bom)
	return text.Bytes(), err
}

func component(path, version string) cyclonedx.Component {
	purl := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

// modules are those that are linked in, without the exporter's own.
func modules(info *debug.BuildInfo) (all []*debug.Module) {
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, m)
	}
	return all
}

// licenseFile is what a module calls its license or its notices.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright)([-_.].*)?$`)

// notices joins the licenses and notices of everything that is linked in. A module without one is an error: nothing is
// shipped that nobody may ship.
func (b builder) notices(ctx context.Context, info *debug.BuildInfo) ([]byte, error) {
	dirs, err := b.moduleDirs(ctx, info)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "The exporter of kubecdc contains the following modules, each under its license.\n")
	for _, m := range modules(info) {
		found, err := licenses(dirs[m.Path])
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s %s has no license in %q", m.Path, m.Version, dirs[m.Path])
		}
		for _, f := range found {
			writeNotice(&text, m.Path+" "+m.Version, f)
		}
	}
	goLicense, err := licenses(goRoot(ctx))
	if err != nil {
		return nil, err
	}
	for _, f := range goLicense {
		writeNotice(&text, "Go's standard library", f)
	}
	return text.Bytes(), nil
}

func writeNotice(b *bytes.Buffer, of string, f file) {
	line := strings.Repeat("=", 100)
	fmt.Fprintf(b, "\n%s\n%s: %s\n%s\n\n%s\n", line, of, f.name, line, bytes.TrimSpace(f.text))
}

func goRoot(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// licenses are the license files in a module's root.
func licenses(dir string) (found []file, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || !licenseFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		found = append(found, file{name: e.Name(), text: text})
	}
	return found, nil
}

// moduleDirs maps the modules to their directories in Go's cache.
func (b builder) moduleDirs(ctx context.Context, info *debug.BuildInfo) (map[string]string, error) {
	args := []string{"mod", "download", "-json"}
	for _, m := range modules(info) {
		args = append(args, m.Path+"@"+m.Version)
	}
	download := exec.CommandContext(ctx, "go", args...)
	download.Dir = b.source
	out, err := download.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w", err)
	}
	dirs := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var m struct{ Path, Dir string }
		if err := d.Decode(&m); err != nil {
			return nil, err
		}
		dirs[m.Path] = m.Dir
	}
	if missing := slices.IndexFunc(modules(info), func(m *debug.Module) bool { return dirs[m.Path] == "" }); missing >= 0 {
		return nil, fmt.Errorf("%s is not in Go's module cache", modules(info)[missing].Path)
	}
	return dirs, nil
}
