// Command release builds what a release is made of, without a container daemon and so that two builds of the same sources
// are equal byte for byte.
//
//	release image   -out DIRECTORY [-version V] [-platforms linux/amd64,linux/arm64]   an image as OCI layout, with SBOM and notices
//	release push    -out DIRECTORY -to REGISTRY/REPOSITORY:TAG                          uploads that image
//	release archive -out DIRECTORY [-version V] [-platforms …]                          archives with the binary, SBOM, provenance, checksums
//	release manifests -out DIRECTORY -download URL [-version V] [-platforms …]          krew plugin and Homebrew formula for the archives
//	release sign    -out DIRECTORY -key FILE                                            signature of the checksums
//
// It runs in the root of a checkout.
package main
