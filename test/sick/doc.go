// Package sick holds no code: its tests make one topic of ten sick, on a real broker and with a real journal, and count what
// the nine others get meanwhile, what is held in memory, and what comes when the tenth is cured. `make sick` runs them at
// full size.
package sick
