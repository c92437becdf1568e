// Package auth gets connections to Kafka in: TLS, and SASL with passwords (PLAIN, SCRAM), tokens (OAUTHBEARER, by a file or
// by OAuth client credentials) and identities of AWS (MSK IAM). Files and environment are read for every connection, so that
// what is renewed is used.
package auth
