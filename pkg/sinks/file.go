package sinks

// File is a file that the configuration of a sink names: credentials and certificates, which the sink reads again for each
// connection. Who starts it looks beforehand whether they are there.
type File struct {
	Key  string // that names it, relative to the sink: "kafka.tls.caFile"
	Path string // as configured
	PEM  bool   // certificates or a key, in PEM
}

// NamedFiles returns those of all that are configured.
func NamedFiles(all ...File) []File {
	var named []File
	for _, f := range all {
		if f.Path != "" {
			named = append(named, f)
		}
	}
	return named
}
