package auth

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	aws "github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	mskTokenLife = 15 * time.Minute // the maximum that MSK brokers accept
	emptySHA256  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	// awsRenewalMargin is how long before their expiry temporary credentials are replaced.
	awsRenewalMargin = 5 * time.Minute
)

// mskToken returns what AWS MSK brokers accept as an OAUTHBEARER token: a presigned request to connect, which is never sent.
func mskToken(region string, by aws.Value, at time.Time) string {
	request := presignedRequest{host: "kafka." + region + ".amazonaws.com", path: "/", region: region, service: "kafka-cluster",
		query: url.Values{"Action": {"kafka-cluster:Connect"}}, body: emptySHA256, at: at, validFor: mskTokenLife}
	return base64.RawURLEncoding.EncodeToString([]byte(request.signedURL(by) + "&User-Agent=kubecdc"))
}

// awsIdentity creates tokens with the credentials of the Pod. It finds these in the environment as the AWS SDKs do: an
// access key, a role for the service account, or EKS Pod Identity. The role of the node and the files of a user are not
// used. It is safe for concurrent use.
type awsIdentity struct {
	region      string
	client      *http.Client
	credentials *aws.Credentials // caches temporary ones
}

func newAWSIdentity(region string, client *http.Client) (*awsIdentity, error) {
	region = cmp.Or(region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	if region == "" {
		return nil, errors.New("kafka.sasl.region: missing, and AWS_REGION is not set; expected the region of the cluster, such as eu-west-1")
	}
	var source aws.Provider = &aws.EnvAWS{}
	if os.Getenv("AWS_ACCESS_KEY_ID") == "" {
		source = &aws.IAM{Region: region, Endpoint: os.Getenv("AWS_ENDPOINT_URL_STS"), ExpiryWindow: awsRenewalMargin}
	}
	return &awsIdentity{region: region, client: client, credentials: aws.New(source)}, nil
}

func (i *awsIdentity) connectionToken(ctx context.Context) (string, error) {
	isSet := func(name string) bool { return os.Getenv(name) != "" }
	if !slices.ContainsFunc([]string{"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"}, isSet) {
		return "", errors.New("AWS credentials: none of AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE (a role for the service account) and " +
			"AWS_CONTAINER_CREDENTIALS_FULL_URI (EKS Pod Identity) is set")
	}
	found, err := i.credentials.GetWithContext(&aws.CredContext{Client: i.client, Context: ctx})
	if err != nil {
		return "", fmt.Errorf("AWS credentials: %w; check AWS_ROLE_ARN and the trust policy of the role, or the Pod Identity association", err)
	}
	return mskToken(i.region, found, time.Now()), nil
}

// presignedRequest is a GET request that is signed in its query: AWS Signature Version 4, "Using Query Parameters".
type presignedRequest struct {
	host, path      string
	region, service string
	query           url.Values // without the parameters of the signature
	body            string     // SHA-256 of the body in hexadecimal, or the placeholder of the service
	at              time.Time
	validFor        time.Duration
}

// signedURL returns the request's address, signed with credentials.
func (p presignedRequest) signedURL(by aws.Value) string {
	const algorithm, second = "AWS4-HMAC-SHA256", "20060102T150405Z"
	at := p.at.UTC()
	day := at.Format("20060102")
	scope := strings.Join([]string{day, p.region, p.service, "aws4_request"}, "/")
	query := url.Values{
		"X-Amz-Algorithm":     {algorithm},
		"X-Amz-Credential":    {by.AccessKeyID + "/" + scope},
		"X-Amz-Date":          {at.Format(second)},
		"X-Amz-Expires":       {strconv.Itoa(int(p.validFor.Seconds()))},
		"X-Amz-SignedHeaders": {"host"},
	}
	if by.SessionToken != "" {
		query.Set("X-Amz-Security-Token", by.SessionToken)
	}
	for name, values := range p.query {
		query[name] = values
	}
	text := strings.ReplaceAll(query.Encode(), "+", "%20") // sorted by name, as the signature requires
	canonical := strings.Join([]string{"GET", p.path, text, "host:" + p.host, "", "host", p.body}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + by.SecretAccessKey)
	for _, part := range []string{day, p.region, p.service, "aws4_request"} {
		key = hmacSHA256(key, part)
	}
	signature := hmacSHA256(key, strings.Join([]string{algorithm, at.Format(second), scope, hex.EncodeToString(hash[:])}, "\n"))
	return "https://" + p.host + p.path + "?" + text + "&X-Amz-Signature=" + hex.EncodeToString(signature)
}

func hmacSHA256(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
