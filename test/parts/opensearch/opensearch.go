package opensearch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// java keeps the machine small. OpenSearch 2 needs the security manager, which Java 17 has to be allowed.
var java = []string{"java", "-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.security.manager=allow"}

// Server is a started server.
type Server struct {
	port    int
	process *process.Process
}

// Start starts a server with its configuration, data and log below a directory, which has to be new. ctx bounds the start,
// and fetching the server if it is not in the cache; the server runs until Stop or the end of this process.
func Start(ctx context.Context, dir string) (*Server, error) {
	home, err := build.OpenSearch(ctx)
	if err != nil {
		return nil, err
	}
	var s *Server
	err = ports.Try(2, func(free []int) error {
		s = &Server{port: free[0]}
		data := filepath.Join(dir, strconv.Itoa(s.port))
		if err := s.configure(data, free[1]); err != nil {
			return err
		}
		command := process.AsNobody(append(java, "-Djava.io.tmpdir="+data, "-Dopensearch.path.home="+home,
			"-Dopensearch.path.conf="+data, "-Dopensearch.distribution.type=zip", "-Dopensearch.bundled_jdk=false",
			"-cp", filepath.Join(home, "lib", "*"), "org.opensearch.bootstrap.OpenSearch")...)
		s.process, err = process.Start(ctx, process.Options{
			Name: "opensearch", Path: command[0], Args: command[1:], Dir: data, Log: filepath.Join(dir, "opensearch.log"), Ready: s.answers,
		})
		return err
	})
	return s, err
}

func (s *Server) configure(dir string, transport int) error {
	settings := fmt.Sprintf(`discovery.type: single-node
http.port: %d
transport.port: %d
network.host: 127.0.0.1
path.data: %s
path.logs: %s
cluster.routing.allocation.disk.threshold_enabled: false
`, s.port, transport, filepath.Join(dir, "data"), filepath.Join(dir, "logs"))
	const logging = `appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
`
	return errors.Join(
		os.MkdirAll(dir, 0o755), process.OwnedByNobody(dir),
		os.WriteFile(filepath.Join(dir, "opensearch.yml"), []byte(settings), 0o644),
		os.WriteFile(filepath.Join(dir, "log4j2.properties"), []byte(logging), 0o644),
	)
}

// answers asks whether the node has a cluster, which is one that can write.
func (s *Server) answers(ctx context.Context) error {
	return process.GetOK(ctx, s.URL()+"/_cluster/health?wait_for_status=yellow&timeout=1s")
}

// URL is where it listens.
func (s *Server) URL() string { return "http://" + ports.Address(s.port) }

// Stop ends the server.
func (s *Server) Stop() error { return s.process.Stop() }
