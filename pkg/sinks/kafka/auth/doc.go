// Package auth authenticates connections to Kafka: TLS, and SASL with passwords (PLAIN, SCRAM), tokens (OAUTHBEARER, from a
// file or by OAuth client credentials) and AWS identities (MSK IAM). Files are read for every connection, so that
// renewed credentials are used.
package auth
