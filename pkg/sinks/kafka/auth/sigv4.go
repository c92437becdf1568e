package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"
)

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
