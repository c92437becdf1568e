package natsserver

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// nowhere is an address without a listener.
const nowhere = "127.0.0.1:1"

// config writes the server's configuration file. Strings are quoted as in Go, which the format reads alike.
func (s *Server) config(options Options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server_name: %q\n", options.Name)
	fmt.Fprintf(&b, "listen: %q\n", ports.Address(s.port))
	fmt.Fprintf(&b, "http: %q\n", ports.Address(s.monitor))
	fmt.Fprintf(&b, "jetstream {\n  store_dir: %q\n}\n", filepath.Join(options.Dir, "store"))
	// Clients and servers know the servers they were given, so that all go through a test's proxies.
	if cluster := options.Cluster; cluster != nil {
		fmt.Fprintf(&b, "cluster {\n  name: %q\n  listen: %q\n  advertise: %q\n  routes: [%s]\n  no_advertise: true\n}\n",
			cluster.Name, ports.Address(cluster.Port), nowhere, routes(cluster.Routes))
	}
	b.WriteString(options.Config)
	return b.String()
}

func routes(portNumbers []int) string {
	urls := make([]string, 0, len(portNumbers))
	for _, port := range portNumbers {
		urls = append(urls, strconv.Quote("nats-route://"+ports.Address(port)))
	}
	return strings.Join(urls, ", ")
}
