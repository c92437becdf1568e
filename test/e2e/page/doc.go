// Package page holds the tests of the status page in a real browser: that it fits a phone, that everybody can use it, and
// that it lives.
package page
