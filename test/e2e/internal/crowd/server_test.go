package crowd

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

func TestPagesHoldEveryObjectOnce(t *testing.T) {
	s := Start(Options{Objects: 25, Bytes: 100, Namespaces: 3})
	defer s.Close()
	names := map[string]bool{}
	for next, pages := "", 0; ; pages++ {
		var page struct {
			Metadata struct{ Continue string }
			Items    []struct {
				Metadata struct{ Name, Namespace string }
			}
		}
		if err := json.Unmarshal(get(t, s.http.URL+"/api/v1/configmaps?limit=10&continue="+next), &page); err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			names[item.Metadata.Namespace+"/"+item.Metadata.Name] = true
		}
		if next = page.Metadata.Continue; next == "" {
			if pages != 2 || len(names) != 25 {
				t.Errorf("%d pages after the first hold %d objects", pages, len(names))
			}
			return
		}
	}
}

func TestContinueTokenExpiresWhenObjectsChange(t *testing.T) {
	s := Start(Options{Objects: 25, Bytes: 100})
	defer s.Close()
	s.ChangeAll()
	answer, err := http.Get(s.http.URL + "/api/v1/configmaps?limit=10&continue=0:10")
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusGone {
		t.Error(answer.Status)
	}
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
