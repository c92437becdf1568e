package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/source"
)

func TestWhatKeepsTheSourceFromBeginningIsTheEnvironmentsFault(t *testing.T) {
	for name, c := range map[string]struct {
		cause       error
		environment bool
	}{
		"the cluster has no name":  {&source.StartError{Err: errors.New("forbidden")}, true},
		"forbidden from the start": {&source.ForbiddenError{AtStart: true, Err: errors.New("403")}, true},
		"a right that was taken":   {&source.ForbiddenError{Err: errors.New("403")}, false},
		"a journal that failed":    {errors.New("disk"), false},
	} {
		var environment *environmentError
		err := failedRun(fmt.Errorf("source: %w", c.cause), c.cause)
		if errors.As(err, &environment) != c.environment {
			t.Errorf("%s: %T", name, err)
		}
	}
}
