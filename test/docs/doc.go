// Package docs holds no code: its tests check that what the pages for people name exists: links and their anchors, metrics,
// alerts, and keys of the configuration. They read text only, so they are fast.
package docs
