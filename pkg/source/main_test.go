package source

import (
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

// client-go spaces all errors of the process by the time of the last one. After an error in real time, the next one in
// virtual time, which begins in the year 2000, would wait for decades.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	leaks.Main(m)
}
