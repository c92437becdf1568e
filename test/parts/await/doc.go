// Package await waits in tests, within a bound, for a state that nothing announces.
package await
