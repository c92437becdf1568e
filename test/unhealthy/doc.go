// Package unhealthy holds no code: its tests let one topic of ten fail, or one broker of three, with real brokers and a real
// journal. They measure the rate of the other topics meanwhile, the memory in use, the time until a recovered topic takes
// changes again, and the rate after that. `make unhealthy` runs them at full size. One more lets a whole destination be away
// and holds memory to what it was, and one lets three of ten changes of a lane be too large.
package unhealthy
