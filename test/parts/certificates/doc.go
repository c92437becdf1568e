// Package certificates makes authorities and certificates for tests of TLS. Nothing of it is fit for use outside of tests.
package certificates
