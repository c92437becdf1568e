package admin

import (
	"net"
	"net/http"
	"strings"
)

// rejectForeignHosts refuses requests for other hosts while the server listens on loopback. A web page that somebody opens can have its
// own name resolve to 127.0.0.1 and read what this server shows; its browser still sends that name as Host.
func (s *Server) rejectForeignHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.onLoopback() && !isLocal(r.Host) {
			http.Error(w, "this server is for the machine that it runs on: ask for localhost or 127.0.0.1", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) onLoopback() bool {
	if s.listener == nil {
		return false
	}
	addr, ok := s.listener.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// isLocal says whether a Host header, with or without a port, names this machine.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(host).IsLoopback()
}
