package apiserver

import (
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.MainWithServers(m, shared.Stop) }
