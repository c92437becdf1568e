// Package paragraph wraps text, for generated pages and terminals.
package paragraph
