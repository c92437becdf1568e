package auth

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

const (
	mskTokenLife = 15 * time.Minute // the maximum that MSK brokers accept
	emptySHA256  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	// awsRenewalMargin is how long before their expiry temporary credentials are replaced.
	awsRenewalMargin = 5 * time.Minute
)

// awsCredentials is an access key. session and expires belong to a temporary one.
type awsCredentials struct {
	id, secret, session string
	expires             time.Time // zero: never
}

// mskToken returns what AWS MSK brokers accept as an OAUTHBEARER token: a presigned request to connect, which is never sent.
func mskToken(region string, by awsCredentials, at time.Time) string {
	request := presignedRequest{host: "kafka." + region + ".amazonaws.com", path: "/", region: region, service: "kafka-cluster",
		query: url.Values{"Action": {"kafka-cluster:Connect"}}, body: emptySHA256, at: at, validFor: mskTokenLife}
	return base64.RawURLEncoding.EncodeToString([]byte(request.signedURL(by) + "&User-Agent=kubecdc"))
}

// awsIdentity creates tokens with the credentials of the Pod. It finds these in the environment as the AWS SDKs do: an
// access key, a role for the service account, or EKS Pod Identity. The role of the node and the files of a user are not
// used. It is safe for concurrent use.
type awsIdentity struct {
	region string
	client *http.Client

	mu          sync.Mutex
	credentials awsCredentials
}

func newAWSIdentity(region string, client *http.Client) (*awsIdentity, error) {
	region = cmp.Or(region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	if region == "" {
		return nil, errors.New("kafka.sasl.region: missing, and AWS_REGION is not set; expected the region of the cluster, such as eu-west-1")
	}
	return &awsIdentity{region: region, client: client}, nil
}

func (i *awsIdentity) connectionToken(ctx context.Context) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.credentials.id == "" || !i.credentials.expires.IsZero() && time.Until(i.credentials.expires) < awsRenewalMargin {
		now, err := i.findCredentials(ctx)
		if err != nil {
			return "", fmt.Errorf("AWS credentials: %w", err)
		}
		i.credentials = now
	}
	return mskToken(i.region, i.credentials, time.Now()), nil
}

func (i *awsIdentity) findCredentials(ctx context.Context) (awsCredentials, error) {
	switch {
	case os.Getenv("AWS_ACCESS_KEY_ID") != "":
		return awsCredentials{id: os.Getenv("AWS_ACCESS_KEY_ID"), secret: os.Getenv("AWS_SECRET_ACCESS_KEY"), session: os.Getenv("AWS_SESSION_TOKEN")}, nil
	case os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
		return i.assumeRole(ctx)
	case os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		return i.requestPodIdentity(ctx)
	}
	return awsCredentials{}, errors.New("none of AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE (a role for the service account) and " +
		"AWS_CONTAINER_CREDENTIALS_FULL_URI (EKS Pod Identity) is set")
}

// assumeRole exchanges the token of the service account for credentials of its role (STS, AssumeRoleWithWebIdentity).
func (i *awsIdentity) assumeRole(ctx context.Context) (awsCredentials, error) {
	token, err := readSecret(credentials.InFile(os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE")), "AWS_WEB_IDENTITY_TOKEN_FILE")
	if err != nil {
		return awsCredentials{}, err
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(i.region, "cn-") {
		domain = "amazonaws.com.cn"
	}
	endpoint := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_STS"), "https://sts."+i.region+"."+domain)
	form := url.Values{"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {os.Getenv("AWS_ROLE_ARN")},
		"RoleSessionName": {cmp.Or(os.Getenv("AWS_ROLE_SESSION_NAME"), "kubecdc")}, "WebIdentityToken": {token}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return awsCredentials{}, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, body, err := sendRequest(i.client, request)
	if err != nil {
		return awsCredentials{}, err
	}
	var answer struct {
		Code string    `xml:"Error>Code"`
		ID   string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
		Key  string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>SecretAccessKey"`
		Rest string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>SessionToken"`
		Ends time.Time `xml:"AssumeRoleWithWebIdentityResult>Credentials>Expiration"`
	}
	if err := xml.Unmarshal(body, &answer); err != nil || status != http.StatusOK || answer.ID == "" {
		return awsCredentials{}, fmt.Errorf("%s answers %d %s: check AWS_ROLE_ARN and the trust policy of the role", endpoint, status, answer.Code)
	}
	return awsCredentials{answer.ID, answer.Key, answer.Rest, answer.Ends}, nil
}

// requestPodIdentity requests credentials from the EKS Pod Identity agent.
func (i *awsIdentity) requestPodIdentity(ctx context.Context) (awsCredentials, error) {
	endpoint := os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	secret := credentials.Text(os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN"))
	if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
		secret = credentials.InFile(file)
	}
	token, err := readSecret(secret, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
	if err != nil {
		return awsCredentials{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return awsCredentials{}, err
	}
	request.Header.Set("Authorization", token)
	status, body, err := sendRequest(i.client, request)
	if err != nil {
		return awsCredentials{}, err
	}
	var answer struct {
		AccessKeyID, SecretAccessKey, Token string
		Expiration                          time.Time
	}
	if err := json.Unmarshal(body, &answer); err != nil || status != http.StatusOK || answer.AccessKeyID == "" {
		return awsCredentials{}, fmt.Errorf("%s answers %d: check the Pod Identity association", endpoint, status)
	}
	return awsCredentials{answer.AccessKeyID, answer.SecretAccessKey, answer.Token, answer.Expiration}, nil
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
func (p presignedRequest) signedURL(by awsCredentials) string {
	const algorithm, second = "AWS4-HMAC-SHA256", "20060102T150405Z"
	at := p.at.UTC()
	day := at.Format("20060102")
	scope := strings.Join([]string{day, p.region, p.service, "aws4_request"}, "/")
	query := url.Values{
		"X-Amz-Algorithm":     {algorithm},
		"X-Amz-Credential":    {by.id + "/" + scope},
		"X-Amz-Date":          {at.Format(second)},
		"X-Amz-Expires":       {strconv.Itoa(int(p.validFor.Seconds()))},
		"X-Amz-SignedHeaders": {"host"},
	}
	if by.session != "" {
		query.Set("X-Amz-Security-Token", by.session)
	}
	for name, values := range p.query {
		query[name] = values
	}
	text := strings.ReplaceAll(query.Encode(), "+", "%20") // sorted by name, as the signature requires
	canonical := strings.Join([]string{"GET", p.path, text, "host:" + p.host, "", "host", p.body}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + by.secret)
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
