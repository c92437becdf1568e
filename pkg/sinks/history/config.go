package history

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// Config is where a history is, and how much of it is kept.
type Config struct {
	// The folder, for its owner only; created if absent. One exporter writes to it, and anything may read it.
	Dir string `mapstructure:"dir"`
	// In place of dir: s3://BUCKET/PREFIX?region=REGION, with endpoint=https://HOST:PORT and ca=FILE for others than AWS.
	Bucket string `json:",omitempty" mapstructure:"bucket"`
	// Keys of the bucket. Without them those of the environment, as for other clients of S3.
	Keys history.Keys `json:",omitzero" mapstructure:"keys"`
	// How long changes are kept, such as 90d. Older ones go in parts of up to a day. 0: for ever.
	Keep time.Duration `mapstructure:"keep"`
	// Bound of its size: the oldest changes go first, and about a day stays. 0: none.
	MaxBytes int64 `mapstructure:"maxBytes"`
}

// Validate checks everything that needs no access to the file system.
func (c Config) Validate() error {
	none := credentials.Secret{}
	switch {
	case c.Dir == "" && c.Bucket == "":
		return errors.New("history.dir: is missing; name a folder such as ./history, or a bucket: s3://BUCKET/PREFIX")
	case c.Dir != "" && c.Bucket != "":
		return errors.New("history.bucket: history.dir is set too; name one of them")
	case (c.Keys.ID == none) != (c.Keys.Secret == none):
		return errors.New("history.keys: only one of id and secret is set")
	case c.Keys.ID != none && c.Bucket == "":
		return errors.New("history.keys: belong to a bucket, and history.bucket is not set")
	case strings.HasPrefix(c.Dir, "s3:"), c.Bucket != "" && !strings.HasPrefix(c.Bucket, "s3:"):
		return errors.New("history.bucket: expected s3://BUCKET/PREFIX")
	}
	if _, err := c.Store(); err != nil {
		return errors.New("history.bucket: " + err.Error())
	}
	return nil
}

// Store returns where the history is. It contacts nothing.
func (c Config) Store() (history.Store, error) {
	return history.StoreAt(c.Where(), c.Keys)
}

// Files returns the files of the configuration that are read on connecting.
func (c Config) Files() []credentials.File {
	if u, err := url.Parse(c.Bucket); err == nil && u.Query().Get("ca") != "" {
		return []credentials.File{{Key: "history.bucket", Path: u.Query().Get("ca")}}
	}
	return nil
}

// Where names the place of the history.
func (c Config) Where() string { return c.Dir + c.Bucket }
