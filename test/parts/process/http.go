package process

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// GetOK asks for a URL without credentials, and returns an error unless the answer is 200. It is what [Options.Ready] of
// most servers comes down to.
func GetOK(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return ExpectOK(http.DefaultClient, request)
}

// ExpectOK sends a request, and returns an error with the answer in it unless that is 200.
func ExpectOK(client *http.Client, request *http.Request) error {
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", request.Method, request.URL, response.Status, body)
	}
	return nil
}
