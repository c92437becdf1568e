package sinks

// File is a file that the configuration of a sink names: credentials and certificates, which the sink reads again for each
// connection. The exporter checks at start that they exist.
type File struct {
	Key  string // the configuration key, relative to the sink: "kafka.tls.caFile"
	Path string // as configured
	PEM  bool   // holds certificates or a key, in PEM
}

// NamedFiles returns the files that are configured.
func NamedFiles(all ...File) []File {
	var named []File
	for _, f := range all {
		if f.Path != "" {
			named = append(named, f)
		}
	}
	return named
}
