//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package ports

// reserve reserves nothing: two processes may be given the same port here, and Try chooses another.
func reserve(int) (bool, error) { return true, nil }
