// Package paragraph breaks text into lines, for generated pages and for terminals.
package paragraph
