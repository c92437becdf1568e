// Package involved adds to Events what the objects that they are about have in their metadata, as it was at the time of the
// Event. It watches the metadata of each kind that Events name, and keeps it in memory only.
package involved
