// Package schemas holds what was written to the schema of its format, in the form that refuses what is not described.
package schemas
