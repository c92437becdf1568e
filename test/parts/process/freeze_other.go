//go:build !linux

package process

import "errors"

// Freeze stops a process where it is. It is implemented for Linux only.
func (p *Process) Freeze() error { return errors.ErrUnsupported }

// Resume lets a frozen process continue.
func (p *Process) Resume() error { return errors.ErrUnsupported }
