package broker

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Partitions is how many a topic has where nothing else is said.
const Partitions = 6

// Run starts a broker with empty topics of so many partitions on a free loopback port, writes its address to a file, and
// serves until ctx ends.
func Run(ctx context.Context, addressFile string, topics []string, partitions int) error {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(partitions), topics...))
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	defer cluster.Close()
	address := strings.Join(cluster.ListenAddrs(), ",")
	if err := writeWhole(addressFile, address); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	<-ctx.Done()
	return nil
}

// writeWhole makes a file appear with all of its content.
func writeWhole(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
