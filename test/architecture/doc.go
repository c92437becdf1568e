// Package architecture holds no code: its tests check that the packages import each other only in the directions that
// internal/PACKAGES.md lists.
package architecture
