package auth

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	aws "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// testTimeout is how long an endpoint may take.
const testTimeout = 30 * time.Second

func writeFile(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// exampleKey is from the AWS documentation.
var exampleKey = aws.Value{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}

// TestThePublishedRequestIsSignedAsPublished is the example of "Authenticating Requests: Using Query Parameters" in the AWS
// documentation.
func TestThePublishedRequestIsSignedAsPublished(t *testing.T) {
	got := presignedRequest{host: "examplebucket.s3.amazonaws.com", path: "/test.txt", region: "us-east-1", service: "s3",
		body: "UNSIGNED-PAYLOAD", at: time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC), validFor: 24 * time.Hour}.signedURL(exampleKey)
	const want = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256" +
		"&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z" +
		"&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
	if got != want {
		t.Errorf("signed as\n%s\nwant\n%s", got, want)
	}
}

func TestATokenForMSKIsARequestToConnect(t *testing.T) {
	temporary := exampleKey
	temporary.SessionToken = "session/+="
	raw, err := base64.RawURLEncoding.DecodeString(mskToken("eu-west-1", temporary, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	if u.Host != "kafka.eu-west-1.amazonaws.com" || u.Path != "/" {
		t.Errorf("for %s", raw)
	}
	for name, want := range map[string]string{
		"Action": "kafka-cluster:Connect", "X-Amz-Expires": "900", "X-Amz-Date": "20260102T030405Z", "X-Amz-Security-Token": "session/+=",
		"X-Amz-Credential": "AKIAIOSFODNN7EXAMPLE/20260102/eu-west-1/kafka-cluster/aws4_request", "User-Agent": "kubecdc",
	} {
		if got := u.Query().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// credentialOf returns the access key that signed a token.
func credentialOf(t *testing.T, token string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(u.Query().Get("X-Amz-Credential"), "/")
	return id
}

// withoutAWS unsets the environment variables that the identity uses.
func withoutAWS(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
		"AWS_ENDPOINT_URL_STS", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "")
	}
}

func TestTheServiceAccountRoleSignsAndIsRenewedBeforeItExpires(t *testing.T) {
	withoutAWS(t)
	asked := 0
	expires := time.Now().Add(awsRenewalMargin / 2)
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("RoleArn") != "arn:aws:iam::1:role/exporter" || r.FormValue("WebIdentityToken") != "projected" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		asked++
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
			<AccessKeyId>ASIA%d</AccessKeyId><SecretAccessKey>k</SecretAccessKey><SessionToken>s</SessionToken><Expiration>%s</Expiration>
			</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, asked, expires.UTC().Format(time.RFC3339))
	}))
	t.Cleanup(sts.Close)
	dir := t.TempDir()
	writeFile(t, dir, "token", []byte("projected"))
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", filepath.Join(dir, "token"))
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/exporter")
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	i, err := newAWSIdentity("eu-west-1", newTokenClient(testTimeout))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ASIA1", "ASIA2", "ASIA2"} { // the first ones expire soon
		if token, err := i.connectionToken(t.Context()); err != nil || credentialOf(t, token) != want {
			t.Fatalf("signed by %s, want %s: %v", credentialOf(t, token), want, err)
		}
		expires = time.Now().Add(time.Hour)
	}
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/other")
	i.credentials.Expire()
	if _, err := i.connectionToken(t.Context()); err == nil || !strings.Contains(err.Error(), "AWS_ROLE_ARN") || strings.Contains(err.Error(), "projected") {
		t.Errorf("a role that does not trust us: %v", err)
	}
}

func TestPodIdentitySigns(t *testing.T) {
	withoutAWS(t)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "projected" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"AccessKeyId":"ASIAPOD","SecretAccessKey":"k","Token":"s","Expiration":"2126-01-02T03:04:05Z"}`)
	}))
	t.Cleanup(agent.Close)
	dir := t.TempDir()
	writeFile(t, dir, "token", []byte("projected"))
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", filepath.Join(dir, "token"))
	t.Setenv("AWS_REGION", "eu-west-1")
	i, err := newAWSIdentity("", newTokenClient(testTimeout))
	if err != nil {
		t.Fatal(err)
	}
	if token, err := i.connectionToken(t.Context()); err != nil || credentialOf(t, token) != "ASIAPOD" {
		t.Errorf("%v", err)
	}
}

func TestWithoutAnIdentityTheErrorNamesTheSources(t *testing.T) {
	withoutAWS(t)
	if _, err := newAWSIdentity("", nil); err == nil || !strings.Contains(err.Error(), "kafka.sasl.region") {
		t.Errorf("without a region: %v", err)
	}
	i, err := newAWSIdentity("eu-west-1", newTokenClient(testTimeout))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = bearer{i.connectionToken}.Authenticate(t.Context(), "")
	var none *CredentialError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "AWS_WEB_IDENTITY_TOKEN_FILE") {
		t.Errorf("%v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIA")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	if i, err = newAWSIdentity("eu-west-1", nil); err != nil {
		t.Fatal(err)
	}
	if token, err := i.connectionToken(t.Context()); err != nil || credentialOf(t, token) != "AKIA" {
		t.Error(err)
	}
}
