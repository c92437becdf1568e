package sinks

import (
	"errors"
	"net/netip"
	"regexp"
	"strings"
)

const maxHostLength = 253 // of a name in the DNS

// dottedNumbers matches what looks like an IPv4 address.
var dottedNumbers = regexp.MustCompile(`^[0-9]+(\.[0-9]+){3}$`)

// CheckHost returns why nothing can be reached under a host: it looks like an IP address and is none, or is too long. The
// error does not quote it.
func CheckHost(host string) error {
	_, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		return nil
	case strings.ContainsRune(host, ':'):
		return errors.New("the host is not an IPv6 address")
	case dottedNumbers.MatchString(host):
		return errors.New("the host is not an IPv4 address, whose numbers are 0 to 255 without leading zeros")
	case len(host) > maxHostLength:
		return errors.New("the host is longer than any name, 253 characters")
	}
	return nil
}
