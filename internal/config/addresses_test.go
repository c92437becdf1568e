package config

import "testing"

func TestAddressesOfTheExporterItselfAreFound(t *testing.T) {
	for _, c := range []struct {
		listen, host, port string
		want               certainty
	}{
		{":8080", "127.0.0.1", "8080", certainly}, {":8080", "::1", "8080", certainly}, {"0.0.0.0:8080", "127.0.0.1", "8080", certainly},
		{"127.0.0.1:8080", "127.0.0.1", "8080", certainly}, {"[::1]:8080", "::1", "8080", certainly}, {"10.0.0.5:8080", "10.0.0.5", "8080", certainly},
		{"127.0.0.1:8080", "0.0.0.0", "8080", certainly}, {"exporter:8080", "exporter", "8080", certainly}, {":8080", "0.0.0.0", "8080", certainly},
		{"127.0.0.1:8080", "localhost", "8080", perhaps}, {":8080", "localhost", "8080", perhaps}, {"localhost:8080", "::1", "8080", perhaps},
		{"127.0.0.1:8080", "127.0.0.2", "8080", no}, {"127.0.0.1:8080", "127.0.0.1", "8081", no}, {"0.0.0.0:8080", "::1", "8080", no},
		{":8080", "10.0.0.5", "8080", no}, {":8080", "receiver.example", "8080", no}, {"127.0.0.1:0", "127.0.0.1", "0", no}, {"", "127.0.0.1", "8080", no},
		{"10.0.0.5:8080", "127.0.0.1", "8080", no}, {"127.0.0.1:8080", "::1", "8080", no},
	} {
		if got := isOwn(c.listen, c.host, c.port); got != c.want {
			t.Errorf("%s at %s:%s: %d, want %d", c.listen, c.host, c.port, got, c.want)
		}
	}
	for pair, want := range map[[2]string]bool{
		{":8080", "0.0.0.0:8080"}: true, {"0.0.0.0:8080", "127.0.0.1:8080"}: true, {":8080", ":8080"}: true, {"[::]:8080", "[::1]:8080"}: true,
		{"127.0.0.1:8080", "127.0.0.2:8080"}: false, {":8080", ":9443"}: false, {":0", ":0"}: false, {"", ":8080"}: false,
	} {
		if got := excludeEachOther(pair[0], pair[1]); got != want || excludeEachOther(pair[1], pair[0]) != want {
			t.Errorf("%v: %t, want %t", pair, got, want)
		}
	}
}
