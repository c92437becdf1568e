package source

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// followCredentials has everything use changed credentials at once: what waits after a failure tries again, and watches are
// opened with them. It returns when ctx ends.
func (s *Source) followCredentials(ctx context.Context) {
	known, _ := s.cfg.Client.Refresh()
	for sleep(ctx, apiserver.LookInterval) == nil {
		loaded, err := s.cfg.Client.Refresh()
		problem := condition.Problem{}
		if err != nil {
			problem = condition.Problem{Code: condition.CredentialsUnread, Cause: err.Error()}
		}
		s.credentials.Update(problem)
		if loaded == known {
			continue
		}
		known = loaded
		s.cfg.Log.Info("the credentials for the API server have changed; using them")
		s.poller.scheduler.requestPoll()
		for _, r := range s.runners.allRunners() {
			for _, f := range r.followers {
				f.api.requestReconnect()
			}
		}
	}
}
