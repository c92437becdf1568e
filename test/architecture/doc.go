// Package architecture holds no code: its tests check that the packages import each other only in the directions that
// docs/architecture.md draws.
package architecture
