package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestPartsHaveOneOrderHoweverTheyAreNamed(t *testing.T) {
	all := []string{"controlplane", "nats", "kafka"}
	for _, words := range [][]string{nil, {"all"}, {"kafka,nats", "controlplane"}} {
		if parts, err := partNames(words); err != nil || !slices.Equal(parts, all) {
			t.Errorf("partNames(%q) = %q, %v", words, parts, err)
		}
	}
	if _, err := partNames([]string{"kafka", "redis"}); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), `"redis"`) {
		t.Errorf("an unknown part: %v", err)
	}
}
