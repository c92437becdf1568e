package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// defaultVersion is the version of a build without one.
const defaultVersion = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("the first argument is missing: image, push, archive, manifests or sign")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	out := flags.String("out", "dist", "directory for what is made")
	version := flags.String("version", defaultVersion, "version that the exporter calls itself")
	to := flags.String("to", "", "where the image is pushed: REGISTRY/REPOSITORY:TAG")
	key := flags.String("key", "", "file of the private key that signs the checksums, PEM")
	download := flags.String("download", "", "https address of the directory where the archives will be found")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "operating systems and architectures")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	b := builder{source: ".", version: *version}
	all, err := parsePlatforms(*platforms)
	if err != nil {
		return err
	}
	switch args[0] {
	case "image":
		return b.image(ctx, *out, all)
	case "push":
		return push(ctx, *out, *to)
	case "archive":
		return b.archives(ctx, *out, all)
	case "manifests":
		if err := b.manifests(*out, *download, all); err != nil {
			return err
		}
		return checksums(*out)
	case "sign":
		return sign(*out, *key)
	}
	return fmt.Errorf("%q is none of image, push, archive, manifests and sign", args[0])
}

// platform is what a binary is built for.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

func parsePlatforms(text string) ([]platform, error) {
	var all []platform
	for one := range strings.SplitSeq(text, ",") {
		system, arch, ok := strings.Cut(one, "/")
		if !ok || system == "" || arch == "" {
			return nil, fmt.Errorf("platform %q is not OS/ARCHITECTURE", one)
		}
		all = append(all, platform{system, arch})
	}
	return all, nil
}
