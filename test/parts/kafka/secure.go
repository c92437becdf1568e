package kafka

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

// properties adds the listener to those that a broker has anyway.
func (s *Secure) properties(b *Broker, controller int) map[string]string {
	protocol := "SSL"
	if len(s.Mechanisms) > 0 {
		protocol = "SASL_SSL"
	}
	all := map[string]string{
		"listeners":                      fmt.Sprintf("PLAINTEXT://%s,SECURE://%s,CONTROLLER://%s", b.Address(), b.SecureAddress(), ports.Address(controller)),
		"advertised.listeners":           fmt.Sprintf("PLAINTEXT://%s,SECURE://%s", b.Address(), b.SecureAddress()),
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:" + protocol,

		"listener.name.secure.ssl.keystore.type":              "PEM",
		"listener.name.secure.ssl.keystore.certificate.chain": oneLine(s.Certificate),
		"listener.name.secure.ssl.keystore.key":               oneLine(s.Key),
	}
	if s.Clients != "" {
		all["listener.name.secure.ssl.client.auth"] = "required"
		all["listener.name.secure.ssl.truststore.type"] = "PEM"
		all["listener.name.secure.ssl.truststore.certificates"] = oneLine(s.Clients)
	}
	if len(s.Mechanisms) > 0 {
		all["listener.name.secure.sasl.enabled.mechanisms"] = strings.Join(slices.Sorted(maps.Keys(s.Mechanisms)), ",")
	}
	for name, jaas := range s.Mechanisms {
		all["listener.name.secure."+strings.ToLower(name)+".sasl.jaas.config"] = jaas
	}
	return all
}

// oneLine writes PEM as a property, in which a line ends with a backslash and "n".
func oneLine(pem string) string { return strings.ReplaceAll(strings.TrimSpace(pem), "\n", `\n`) }
