package build

import (
	"context"
	"os/exec"
	"path/filepath"
)

// chromiumPackages are those of Chromium without a window, and of what it needs beside the libraries of a small Debian.
var chromiumPackages = []string{
	"chromium-headless-shell", "chromium-common", "libasyncns0", "libdouble-conversion3", "libflac12", "libharfbuzz-subset0", "libminizip1",
	"libmp3lame0", "libmpg123-0", "libogg0", "libopenh264-7", "libopenjp2-7", "libopus0", "libpulse0", "libsndfile1", "libvorbis0a",
	"libvorbisenc2", "libxnvctrl0",
}

// Chromium returns the path of a headless Chromium and the environment variables it needs: one that is on PATH, else
// Debian's.
func Chromium(ctx context.Context) (program string, env []string, err error) {
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil, nil
		}
	}
	dir, err := debian{title: "chromium", takes: "about 30 seconds, 75 MB", packages: chromiumPackages}.provide(ctx)
	if err != nil {
		return "", nil, err
	}
	libraries, err := filepath.Glob(filepath.Join(dir, "usr", "lib", "*-linux-gnu*"))
	if err != nil {
		return "", nil, err
	}
	path := ""
	for _, l := range libraries {
		path += l + ":" + filepath.Join(l, "pulseaudio") + ":"
	}
	return filepath.Join(dir, "usr", "lib", "chromium", "chromium-headless-shell"), []string{"LD_LIBRARY_PATH=" + path}, nil
}
