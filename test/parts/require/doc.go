// Package require decides whether a test that needs real servers runs, and makes a test that does not run heard.
//
// Such tests run by default. They are skipped with -short or KUBECDC_INTEGRATION=0, with a line on standard error
// with the reason. If REQUIRE_INTEGRATION=1 is set, as in CI, a skip is a failure: a green build then means that they
// ran.
package require
