package source

import (
	"slices"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

func (f *fakeAPI) discoveryPolls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.polls
}

// widgetsRule selects a type that may come and go, in a Source that polls as often as it does by itself.
func widgetsRule(c *Config) {
	c.Rules = []selection.Rule{{Select: []string{"widgets.example.com"}}}
	c.Interval = 0
}

var widgetGroup = groupOf("example.com", "v1", "widgets")

func (f *fakeAPI) setGroups(groups ...apidiscovery.APIGroupDiscovery) {
	f.update(func() { f.groups = groups })
}

func TestNewTypeIsFoundByTheNextPoll(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		_, _, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		time.Sleep(10 * time.Minute)
		polls := f.discoveryPolls()
		time.Sleep(time.Hour)
		if n := f.discoveryPolls() - polls; n < 1190 || n > 1210 {
			t.Errorf("%d polls in an hour, want every 3 s", n)
		}
		f.setGroups(coreGroup("pods"), widgetGroup)
		began := time.Now()
		st.awaitEmitted(t, "snapshot a@11")
		if took := time.Since(began); took > defaultInterval {
			t.Errorf("took %s", took)
		}
	})
}

func TestATypeThatIsHiddenForAMomentIsNotRemoved(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.groups = []apidiscovery.APIGroupDiscovery{coreGroup("pods"), widgetGroup}
		s, _, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(10 * time.Minute)
		f.setGroups(coreGroup("pods")) // like a starting API server
		time.Sleep(defaultInterval + time.Second)
		f.setGroups(coreGroup("pods"), widgetGroup)
		time.Sleep(time.Minute)
		if got := s.Status(); len(got) != 1 || got[0].State != Live || !slices.Equal(st.transcript(), []string{"snapshot a@11"}) {
			t.Errorf("status %+v, emitted %q", got, st.transcript())
		}

		f.update(func() { f.groups, f.absent = []apidiscovery.APIGroupDiscovery{coreGroup("pods")}, true })
		began := time.Now()
		st.awaitTrue(t, "the end", func() bool { return slices.Contains(st.transcript(), "deleted a@11~") })
		if took := time.Since(began); took > 3*defaultInterval {
			t.Errorf("took %s", took)
		}
	})
}
