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
	// The folder; it is created if there is none, for its owner only, since objects may hold secrets. One exporter
	// writes to it, and anything may read it.
	Dir string `mapstructure:"dir"`
	// In place of dir a bucket of a server that speaks S3: s3://BUCKET/PREFIX?region=REGION, with
	// endpoint=https://HOST:PORT for others than AWS, and ca=FILE for their certificates. It needs conditional writes.
	Bucket string `json:",omitempty" mapstructure:"bucket"`
	// Keys of the bucket. Without them those of the environment: AWS_ACCESS_KEY_ID, ~/.aws/credentials, the role of the service
	// account, of the Pod or of the node.
	Keys Keys `json:",omitzero" mapstructure:"keys"`
	// How long changes are kept, such as 90d. Older ones are removed in parts of up to a day; the state at each time
	// within it can always be told. 0: for ever.
	Keep time.Duration `mapstructure:"keep"`
	// How large the history may become: the oldest changes are removed first, and the newest of about a day stay.
	// 0: no bound.
	MaxBytes int64 `mapstructure:"maxBytes"`
}

// Keys are the credentials of a bucket.
type Keys struct {
	// Access key, at best from a file or a variable.
	ID credentials.Secret `mapstructure:"id"`
	// Secret of it.
	Secret credentials.Secret `mapstructure:"secret"`
}

// Validate checks everything that needs no access to the file system.
func (c Config) Validate() error {
	switch none := (credentials.Secret{}); {
	case c.Dir == "" && c.Bucket == "":
		return errors.New("history.dir: is missing; name a folder such as ./history, or a bucket: s3://BUCKET/PREFIX")
	case c.Dir != "" && c.Bucket != "":
		return errors.New("history.bucket: history.dir is set too; name one of them")
	case (c.Keys.ID == none) != (c.Keys.Secret == none):
		return errors.New("history.keys: only one of id and secret is set")
	case c.Keys.ID != none && c.Bucket == "":
		return errors.New("history.keys: belong to a bucket, and history.bucket is not set")
	case c.Bucket != "" && !strings.HasPrefix(c.Bucket, "s3:"):
		return errors.New("history.bucket: expected s3://BUCKET/PREFIX")
	}
	if _, err := c.store(); err != nil {
		return errors.New("history.bucket: " + err.Error())
	}
	return nil
}

func (c Config) store() (history.Store, error) {
	return history.StoreAt(c.Dir+c.Bucket, history.Keys(c.Keys))
}

// Files returns the files of the configuration that are read on connecting.
func (c Config) Files() []credentials.File {
	if u, err := url.Parse(c.Bucket); err == nil && u.Query().Get("ca") != "" {
		return []credentials.File{{Key: "history.bucket", Path: u.Query().Get("ca")}}
	}
	return nil
}

// At returns the configuration of a history in a folder, or in a bucket (s3://…).
func At(where string) Config {
	if strings.HasPrefix(where, "s3:") {
		return Config{Bucket: where}
	}
	return Config{Dir: where}
}

// Where names the place of the history.
func (c Config) Where() string { return c.Dir + c.Bucket }
