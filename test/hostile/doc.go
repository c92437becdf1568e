// Package hostile makes what a destination may hold in its worst hours, and what the clusters had meanwhile: two clusters in
// one topic, authors that come later, replays, repeated records, pauses, expired history, lost journals, edited rules,
// repairs, recreated objects, topics that grow, and text that breaks readers. Readers of a stream are compared with it.
package hostile
