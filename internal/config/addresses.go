package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func validateListen(rep *reporter, path, listen string) {
	if listen == "" {
		return
	}
	p := Problem{Message: "not an address to listen on", Found: strconv.Quote(listen),
		Expected: `host:port, such as "127.0.0.1:8080" or ":8080"`}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || strings.ContainsFunc(host, unicode.IsSpace) {
		rep.addProblem(path, p)
		return
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.Message = "not a port to listen on"
		rep.addProblem(path, p)
		return
	}
	if err := sinks.CheckHost(host); err != nil {
		p.Message = err.Error()
		rep.addProblem(path, p)
	}
}

// validateOwnAddresses reports listeners that exclude each other, and sinks that send to a listener of the exporter itself.
func validateOwnAddresses(rep *reporter, c *Config) {
	if excludeEachOther(c.Admin.Listen, c.Audit.Webhook.Listen) {
		rep.addProblem("audit.webhook.listen", Problem{Message: "has the address of admin.listen", Found: strconv.Quote(c.Audit.Webhook.Listen),
			Expected: "another port"})
	}
	for i, s := range c.Sinks {
		addresses := addressesOf(s)
		for _, path := range slices.Sorted(maps.Keys(addresses)) {
			at := fmt.Sprintf("sinks[%d].%s", i, path)
			reportOwnAddress(rep, at, addresses[path], "admin.listen", c.Admin.Listen)
			reportOwnAddress(rep, at, addresses[path], "audit.webhook.listen", c.Audit.Webhook.Listen)
		}
	}
}

// excludeEachOther reports whether only one of two listeners can be opened.
func excludeEachOther(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil &&
		(isOwn(a, cmp.Or(hostB, "::"), portB) == certainly || isOwn(b, cmp.Or(hostA, "::"), portA) == certainly)
}

func reportOwnAddress(rep *reporter, at, address, listener, listen string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	p := Problem{Found: strconv.Quote(address), Expected: "the address of a receiver"}
	switch isOwn(listen, host, port) {
	case no:
	case certainly:
		p.Message = "is the address of the exporter itself, " + listener
		rep.addProblem(at, p)
	case perhaps:
		p.Message = "may be the address of the exporter itself, " + listener
		rep.addWarning(at, p)
	}
}

// addressesOf returns the addresses that a sink connects to, host:port, by the key that has them.
func addressesOf(s Sink) map[string]string {
	all := map[string]string{}
	switch {
	case s.Kafka != nil:
		for i, broker := range s.Kafka.Brokers {
			all[fmt.Sprintf("kafka.brokers[%d]", i)] = broker
		}
	case s.NATS != nil:
		for address := range strings.SplitSeq(s.NATS.URL, ",") {
			addAddress(all, "nats.url", strings.TrimSpace(address), "4222")
		}
	case s.Webhook != nil:
		addAddress(all, "webhook.url", s.Webhook.URL, map[bool]string{true: "443", false: "80"}[strings.HasPrefix(s.Webhook.URL, "https:")])
	}
	return all
}

// addAddress adds the host and port of a URL, without the rest, which may hold secrets.
func addAddress(all map[string]string, path, address, port string) {
	if u, err := url.Parse(address); err == nil && u.Hostname() != "" {
		all[path] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	}
}

// certainty is whether an address is one of the exporter itself.
type certainty int

const (
	no        certainty = iota
	perhaps             // a name of this machine, under which another process may listen, too
	certainly           // no other process can listen there
)

// isOwn reports whether a connection to host and port reaches the listener at listen, host:port.
func isOwn(listen, host, port string) certainty {
	ownHost, ownPort, err := net.SplitHostPort(listen)
	if err != nil || ownPort == "0" || ownPort != port {
		return no
	}
	listener, target := parseAddress(cmp.Or(ownHost, "::")), parseAddress(host)
	sameFamily := listener.Is6() && listener.IsUnspecified() || listener.Is4() == target.Is4()
	switch {
	case host == ownHost, listener.IsValid() && listener == target,
		listener.IsValid() && listener.IsUnspecified() && target.IsValid() && (target.IsLoopback() || target.IsUnspecified()) && sameFamily,
		listener.IsValid() && target.IsValid() && target.IsUnspecified() && listener.IsLoopback() && sameFamily:
		return certainly
	case host == "localhost" && (listener.IsLoopback() || listener.IsUnspecified()),
		ownHost == "localhost" && target.IsLoopback():
		return perhaps
	}
	return no
}

// parseAddress returns an IP address, the zero value if host is a name.
func parseAddress(host string) netip.Addr {
	address, _ := netip.ParseAddr(host)
	return address.Unmap()
}
