// Package sick holds no code: its tests make one topic of ten sick, or one broker of three, with real brokers and a real
// journal. They count what the others get meanwhile, what is held in memory, how soon what is cured takes changes again, and
// what comes then. `make sick` runs them at full size.
package sick
