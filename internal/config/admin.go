package config

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// validateAdmin checks the address of the admin server, and that no token crosses a network in cleartext by accident.
func validateAdmin(rep *reporter, a Admin) {
	validateListen(rep, "admin.listen", a.Listen)
	const at = "admin.signals.tokenFile"
	switch {
	case a.Signals.TokenFile == "":
	case a.Listen == "":
		rep.addProblem(at, Problem{Message: "has no effect without admin.listen", Found: strconv.Quote(a.Signals.TokenFile),
			Expected: "admin.listen, or no token"})
	case !a.Signals.AllowCleartextCredentials && !isLoopbackAddress(a.Listen):
		rep.addProblem(at, Problem{Message: "lets tokens cross the network in cleartext: the admin server has no TLS",
			Found: "admin.listen " + strconv.Quote(a.Listen), Expected: "an address of loopback, or " +
				"admin.signals.allowCleartextCredentials: true if the network is trusted, or clients come by kubectl port-forward or a proxy with TLS"})
	}
}

// isLoopbackAddress reports whether host:port is reached from this machine only.
func isLoopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return err == nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// validateTokenFile checks the file with the token of signals.
func validateTokenFile(rep *reporter, path string) {
	if path == "" {
		return
	}
	const at = "admin.signals.tokenFile"
	before := len(rep.problems)
	validateCredentialFile(rep, at, sinks.File{Path: path})
	if _, err := signals.ReadToken(path); err != nil && len(rep.problems) == before {
		rep.addProblem(at, Problem{Message: err.Error()})
	}
}
