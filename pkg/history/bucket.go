package history

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	s3 "github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

const (
	requestTimeout = 30 * time.Second
	uploadTimeout  = 10 * time.Minute // of a merged file
	requestTries   = 3

	// partBytes is what of a file is in memory while it is uploaded; a smaller one is one request.
	partBytes = 8 << 20
	// blockBytes is how much is read at a time, and keptBlocks how many blocks stay in memory, of all files.
	blockBytes = 1 << 20
	keptBlocks = 64

	// bucketGrace is how long a question may take that reads a file which is then merged.
	bucketGrace = 10 * time.Minute
)

// Keys are the credentials of a bucket. The zero value is none.
type Keys struct {
	// Access key.
	ID credentials.Secret `mapstructure:"id"`
	// Its secret.
	Secret credentials.Secret `mapstructure:"secret"`
}

// AnswerError is the error with which the server of a bucket answers a request.
type AnswerError struct {
	Status int    // of HTTP
	Code   string // of S3, such as AccessDenied
	Text   string
}

func (e *AnswerError) Error() string {
	return fmt.Sprintf("the answer is %d %s: %s", e.Status, e.Code, strings.TrimSuffix(e.Text, "."))
}

// ErrUnconditional means that a server overwrites a file that a request asks to create if there is none.
var ErrUnconditional = errors.New(`the server has no conditional writes (If-None-Match: *), so that a second exporter would not be noticed`)

// bucket is a bucket of a server that speaks S3.
type bucket struct {
	where, name, prefix  string // prefix is "" or ends with a slash
	endpoint, region, ca string
	keys                 Keys

	checked atomic.Bool // see Check

	mu     sync.Mutex
	client *minio.Client // nil before the first request
	blocks map[blockKey][]byte
	order  []blockKey // of blocks, in the order of reading
}

// newBucket returns the store that an address names: s3://NAME/PREFIX?endpoint=URL&region=REGION&ca=FILE.
func newBucket(where string, keys Keys) (*bucket, error) {
	const expected = "expected s3://BUCKET/PREFIX, then perhaps ?endpoint=https://HOST:PORT&region=REGION&ca=FILE"
	u, err := url.Parse(where)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, errors.New("no address of a bucket: " + expected) // it may have a password
	}
	if err := s3utils.CheckValidBucketNameStrict(u.Host); err != nil {
		return nil, fmt.Errorf("%q: %w: %s", where, err, expected)
	}
	for key := range u.Query() {
		if !slices.Contains([]string{"endpoint", "region", "ca"}, key) {
			return nil, fmt.Errorf("%q has the unknown parameter %q: %s", where, key, expected)
		}
	}
	q := u.Query()
	b := &bucket{where: where, name: u.Host, prefix: strings.Trim(u.Path, "/"), ca: q.Get("ca"), keys: keys, blocks: map[blockKey][]byte{}}
	b.region = cmp.Or(q.Get("region"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	b.endpoint = cmp.Or(q.Get("endpoint"), os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3.amazonaws.com")
	if b.prefix != "" {
		b.prefix += "/"
	}
	if e, err := url.Parse(b.endpoint); err != nil || e.Scheme != "https" && e.Scheme != "http" || e.Host == "" || strings.Trim(e.Path, "/") != "" || e.User != nil {
		return nil, errors.New("the endpoint of the bucket is no address of a server: expected https://HOST:PORT")
	}
	return b, nil
}

func (b *bucket) String() string           { return b.where }
func (b *bucket) grace() time.Duration     { return bucketGrace }
func (b *bucket) lock() (io.Closer, error) { return io.NopCloser(nil), b.Check() } // manifests are the fence

// connect returns the client. It contacts nothing.
func (b *bucket) connect() (*minio.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client != nil {
		return b.client, nil
	}
	secure := strings.HasPrefix(b.endpoint, "https:")
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	if b.ca != "" {
		pem, err := os.ReadFile(b.ca)
		if err != nil {
			return nil, err
		}
		roots, err := x509.SystemCertPool()
		if err != nil {
			return nil, err
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("file %s holds no certificate in PEM", b.ca)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	from := []s3.Provider{&secretKeys{b.keys}}
	if b.keys == (Keys{}) {
		from = []s3.Provider{&s3.EnvAWS{}, &s3.FileAWSCredentials{}, &s3.IAM{Region: b.region, Client: &http.Client{Timeout: requestTimeout / 3}}}
	}
	b.client, err = minio.New(b.endpoint[strings.Index(b.endpoint, "//")+2:], &minio.Options{
		Creds: s3.NewChainCredentials(from), Secure: secure, Transport: transport, Region: b.region, MaxRetries: requestTries})
	return b.client, err
}

// secretKeys reads keys for each request, since a file may have others then.
type secretKeys struct{ Keys }

func (k *secretKeys) RetrieveWithCredContext(*s3.CredContext) (s3.Value, error) { return k.Retrieve() }
func (k *secretKeys) IsExpired() bool                                           { return true }
func (k *secretKeys) Retrieve() (v s3.Value, err error) {
	v.SignerType = s3.SignatureV4
	if v.AccessKeyID, err = k.ID.Read(); err == nil {
		v.SecretAccessKey, err = k.Secret.Read()
	}
	return v, err
}

// do makes a request about a file, within a time.
func (b *bucket) do(within time.Duration, request func(ctx context.Context, c *minio.Client) error) error {
	c, err := b.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err = request(ctx, c)
	var answer minio.ErrorResponse
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("no answer within %s: %w", within, os.ErrDeadlineExceeded)
	case errors.As(err, &answer) && answer.StatusCode != 0:
		switch answer.Code {
		case minio.NoSuchKey:
			return fs.ErrNotExist
		case minio.PreconditionFailed:
			return fs.ErrExist
		}
		return &AnswerError{answer.StatusCode, answer.Code, answer.Message}
	}
	return err
}

func (b *bucket) list(begin string) (names []string, err error) {
	err = b.do(requestTimeout, func(ctx context.Context, c *minio.Client) error {
		for o := range c.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + begin, Recursive: true}) {
			if o.Err != nil {
				return o.Err
			}
			names = append(names, strings.TrimPrefix(o.Key, b.prefix))
		}
		return nil
	})
	return names, err
}

func (b *bucket) read(name string) (content []byte, err error) {
	err = b.do(requestTimeout, func(ctx context.Context, c *minio.Client) error {
		content, err = readObject(ctx, c, b.name, b.prefix+name, minio.GetObjectOptions{})
		return err
	})
	return content, err
}

func readObject(ctx context.Context, c *minio.Client, bucket, key string, o minio.GetObjectOptions) ([]byte, error) {
	r, _, _, err := minio.Core{Client: c}.GetObject(ctx, bucket, key, o)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(r)
	return content, errors.Join(err, r.Close())
}

func (b *bucket) put(name string, content []byte, o minio.PutObjectOptions) error {
	return b.do(requestTimeout, func(ctx context.Context, c *minio.Client) error {
		_, err := c.PutObject(ctx, b.name, b.prefix+name, bytes.NewReader(content), int64(len(content)), o)
		return err
	})
}

func (b *bucket) create(name string, content []byte) error {
	o := minio.PutObjectOptions{DisableMultipart: true}
	o.SetMatchETagExcept("*")
	err := b.put(name, content, o)
	if errors.Is(err, fs.ErrExist) { // perhaps the client has asked twice, since an answer was lost
		if there, e := b.read(name); e == nil && bytes.Equal(there, content) {
			return nil
		}
	}
	return err
}

// Check writes a file twice if it is the first call.
func (b *bucket) Check() error {
	if b.checked.Load() {
		return nil
	}
	name := manifestDir + "/" + strings.ToLower(rand.Text()[:8]) + unfinishedExt
	if err := b.create(name, []byte("1")); err != nil {
		return err
	}
	err := b.create(name, []byte("2"))
	var answer *AnswerError
	if err == nil || errors.As(err, &answer) && answer.Status == http.StatusNotImplemented {
		err = ErrUnconditional
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	err = errors.Join(err, b.remove(name))
	b.checked.Store(err == nil)
	return err
}

func (b *bucket) write(name string, content func(io.Writer) error) error {
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.CloseWithError(content(w))
	}()
	var head bytes.Buffer
	_, err := io.CopyN(&head, r, partBytes)
	switch {
	case errors.Is(err, io.EOF):
		err = b.put(name, head.Bytes(), minio.PutObjectOptions{DisableMultipart: true})
	case err == nil:
		err = b.do(uploadTimeout, func(ctx context.Context, c *minio.Client) error {
			_, err := c.PutObject(ctx, b.name, b.prefix+name, io.MultiReader(&head, r), -1, minio.PutObjectOptions{PartSize: partBytes})
			return err
		})
	}
	r.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
	<-ended
	return err
}

func (b *bucket) remove(name string) error {
	return b.do(requestTimeout, func(ctx context.Context, c *minio.Client) error {
		return c.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{})
	})
}

// open contacts nothing.
func (b *bucket) open(name string, size int64) (blob, error) { return &object{b, name, size}, nil }

// object is a file in a bucket, which is read in blocks that stay in memory for a while: Parquet is read in small parts.
type object struct {
	bucket *bucket
	name   string
	size   int64
}

type blockKey struct {
	name string
	at   int64
}

func (o *object) Name() string { return o.name }
func (o *object) Close() error { return nil }

func (o *object) ReadAt(p []byte, at int64) (n int, err error) {
	for n < len(p) && at < o.size {
		content, err := o.bucket.block(o, at/blockBytes*blockBytes)
		if err != nil {
			return n, err
		}
		if at%blockBytes >= int64(len(content)) {
			return n, io.ErrUnexpectedEOF
		}
		copied := copy(p[n:], content[at%blockBytes:])
		n, at = n+copied, at+int64(copied)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// block returns the block of a file that begins at an offset.
func (b *bucket) block(o *object, at int64) (content []byte, err error) {
	key := blockKey{o.name, at}
	b.mu.Lock()
	content = b.blocks[key]
	b.mu.Unlock()
	if content != nil {
		return content, nil
	}
	err = b.do(requestTimeout, func(ctx context.Context, c *minio.Client) error {
		var options minio.GetObjectOptions
		if err := options.SetRange(at, min(at+blockBytes, o.size)-1); err != nil {
			return err
		}
		content, err = readObject(ctx, c, b.name, b.prefix+o.name, options)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s was replaced while it was read; ask again: %w", o.name, err)
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.order = append(b.order, key); len(b.order) > keptBlocks {
		delete(b.blocks, b.order[0])
		b.order = b.order[1:]
	}
	b.blocks[key] = content
	return content, nil
}
