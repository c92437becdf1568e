package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// archives writes an archive of each platform, with the binary, the license, the notices and an example, the SBOMs, and the
// checksums of all files in out.
func (b builder) archives(ctx context.Context, out string, platforms []platform) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var names []string
	var info *debug.BuildInfo
	err := b.each(ctx, out, platforms, func(p platform, program binary, notices []byte) error {
		info = program.info
		names = append(names, archiveName(b.version, p)+".tar.gz")
		return b.archive(out, p, program, notices)
	})
	if err == nil && info != nil {
		err = b.writeProvenance(ctx, out, info, names)
	}
	if err != nil {
		return err
	}
	return checksums(out)
}

// each builds the exporter for each platform, writes its SBOM and notices into out, and hands it over.
func (b builder) each(ctx context.Context, out string, platforms []platform, do func(platform, binary, []byte) error) error {
	binaries, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(binaries)
	for _, p := range platforms {
		program, err := b.build(ctx, binaries, p)
		if err != nil {
			return err
		}
		notices, err := b.writePapers(ctx, out, p, program.info)
		if err != nil {
			return err
		}
		if err := do(p, program, notices); err != nil {
			return err
		}
	}
	return nil
}

// archiveName returns the name of an archive without its suffix, which is also that of the directory in it.
func archiveName(version string, p platform) string {
	return fmt.Sprintf("kubecdc_%s_%s_%s", strings.TrimPrefix(version, "v"), p.os, p.arch)
}

func (b builder) archive(out string, p platform, program binary, notices []byte) error {
	name := archiveName(b.version, p)
	files := []file{
		{name + "/" + filepath.Base(program.path), 0o755, program.text},
		{name + "/THIRD-PARTY-NOTICES.txt", 0o644, notices},
	}
	for from, to := range map[string]string{"LICENSE": "LICENSE", "README.md": "README.md", "configs/reference.yaml": "reference.yaml"} {
		text, err := os.ReadFile(filepath.Join(b.source, from))
		if err != nil {
			return err
		}
		files = append(files, file{name + "/" + to, 0o644, text})
	}
	text, err := archived(files)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, name+".tar.gz"), packed.Bytes(), 0o644)
}

// checksumList is the file with the checksums of all others.
const checksumList = "SHA256SUMS"

// checksums writes the checksums of the files of a directory, as "sha256sum -c" reads them.
func checksums(dir string) error {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == checksumList || d.Name() == checksumList+signatureSuffix {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(text), filepath.ToSlash(name))
		return err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, checksumList), []byte(b.String()), 0o644)
}
