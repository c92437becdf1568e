package away

import (
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// Here changes come as fast as the journal takes them; how fast things go is for the command to measure.
func TestABrokerThatIsAwayCostsNoMemoryAndNoChange(t *testing.T) {
	require.Integration(t)
	r, err := Run(t.Context(), Options{Dir: t.TempDir(), Before: 3000, During: 60_000, After: 3000})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if r.Missing+r.Duplicates+r.StepsBack > 0 {
		t.Errorf("of %d changes %d are missing, %d are there twice, and %d times an object steps back", r.Fed, r.Missing, r.Duplicates, r.StepsBack)
	}
	const allowance = 48 << 20 // caches fill, by half of that
	if grown := int64(r.Memory[2].Live) - int64(r.Memory[1].Live); grown > allowance {
		t.Errorf("between the first and the last third of the outage memory grew by %d bytes", grown)
	}
	if !r.OtherDone || r.Backlog < 50_000 {
		t.Errorf("the outage was none: a backlog of %d changes", r.Backlog)
	}
}
