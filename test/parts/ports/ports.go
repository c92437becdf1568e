package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
)

const (
	low, high = 12000, 32000 // below the ephemeral range of every system this runs on (Linux: from 32768)
	draws     = 200          // for one port; a machine where all these are taken has another problem
	attempts  = 5
)

// Address returns the loopback address of a port, as "127.0.0.1:PORT".
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Free returns n different ports on which nothing listens at the moment. They are this process's own until it ends: no
// other process is given them, and no other call in this one.
func Free(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		port, err := draw()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// draw finds a port by chance, so that processes that search at the same time seldom meet.
func draw() (int, error) {
	last := errors.New("other processes have reserved them")
	for range draws {
		port := low + rand.IntN(high-low)
		own, err := reserve(port)
		if err != nil {
			return 0, err
		}
		if !own {
			continue
		}
		listener, err := net.Listen("tcp", Address(port))
		if err != nil {
			last = err
			continue
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("no free loopback port between %d and %d in %d tries: %w", low, high, draws, last)
}

// Try calls start with n free ports. If start fails because an address is in use, another process took a port between
// the search and the server's own listen: Try calls it again with new ports, a few times. Any other error is
// returned as it is.
func Try(n int, start func(ports []int) error) error {
	var err error
	for range attempts {
		ports, freeErr := Free(n)
		if freeErr != nil {
			return freeErr
		}
		if err = start(ports); !inUse(err) {
			return err
		}
	}
	return fmt.Errorf("gave up after %d sets of ports: %w", attempts, err)
}

// inUse looks for the system's error and also for its words: a child process has only its log.
func inUse(err error) bool {
	if err == nil {
		return false
	}
	return errors.Is(err, syscall.EADDRINUSE) || strings.Contains(strings.ToLower(err.Error()), "address already in use")
}
