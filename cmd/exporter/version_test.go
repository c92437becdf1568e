package main

import (
	"runtime/debug"
	"testing"
	"time"
)

func TestABuildWithoutFlagsHasAVersion(t *testing.T) {
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3": {Main: debug.Module{Version: "v1.2.3"}},
		"v0.0.0-20261122103000-0123456789ab+dirty": {Main: debug.Module{Version: "v0.0.0-20261122103000-0123456789ab+dirty"}},
		"dev": {Main: debug.Module{Version: "(devel)"}},
	} {
		if got := versionFromBuildInfo(info, true); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := versionFromBuildInfo(&debug.BuildInfo{}, true); got != "dev" {
		t.Errorf("without a version %q", got)
	}
	if got := versionFromBuildInfo(nil, false); got != "dev" {
		t.Errorf("without any information %q", got)
	}
}

// TestTimeZonesAreKnownWithoutTheSystems: an image has no files of them.
func TestTimeZonesAreKnownWithoutTheSystems(t *testing.T) {
	t.Setenv("ZONEINFO", t.TempDir())
	if _, err := time.LoadLocation("Europe/Berlin"); err != nil {
		t.Error(err)
	}
}
