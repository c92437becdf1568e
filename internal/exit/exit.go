package exit

import "errors"

// Code is an exit code of the process: a contract with scripts and supervisors.
type Code int

// The exit codes.
const (
	OK          Code = 0
	Runtime     Code = 1 // the process had started and then failed
	Usage       Code = 2 // the configuration or the arguments are wrong; nothing was started
	Environment Code = 3 // the environment of the process did not allow a start, or a verification
	Different   Code = 4 // a verification found a difference
	Unknown     Code = 5 // a part of the answer is not known: the history has a gap there
)

// With returns err with an exit code; nil stays nil. The message is that of err, and the result unwraps to it.
func With(code Code, err error) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// Default is With for an error that may have a code already, which it keeps.
func Default(code Code, err error) error {
	if _, given := CodeOf(err); given {
		return err
	}
	return With(code, err)
}

// CodeOf returns the code of the outermost [With] in err, and whether there is one; without one it returns Runtime. Nil is
// OK.
func CodeOf(err error) (code Code, given bool) {
	var c *coded
	switch {
	case err == nil:
		return OK, true
	case errors.As(err, &c):
		return c.code, true
	}
	return Runtime, false
}

type coded struct {
	err  error
	code Code
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }
