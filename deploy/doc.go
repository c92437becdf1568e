// Package deploy holds no code. Its tests apply deploy/kustomize to a real API server, compare what it grants with what
// its configuration selects, and look over the Dockerfile.
package deploy
