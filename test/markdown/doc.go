// Package markdown separates the text of a Markdown page from its code, line by line, for tests of the documentation.
package markdown
