// Package deploy holds no code. Its tests apply deploy/kustomize and deploy/helm to a real API server, compare what they
// grant with what their configuration selects, and look over the Dockerfile.
package deploy

//go:generate go run ./helm/gen
