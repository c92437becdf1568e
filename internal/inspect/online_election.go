package inspect

import (
	"context"
	"fmt"
	"strings"

	authorization "k8s.io/api/authorization/v1"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// checkElection checks the rights of the current credentials on the configured Lease.
func checkElection(ctx context.Context, cfg *config.Config, version string) Checklist {
	if !cfg.Election.Enabled() {
		return nil
	}
	f := Finding{Name: "election/" + cfg.Election.Lease}
	client, err := app.NewClient(cfg, version)
	if err != nil {
		f.Reason = err.Error()
		return Checklist{f}
	}
	defer client.Close()
	var missing []string
	for _, verb := range []string{"get", "update", "watch", "create"} {
		ctx, cancel := context.WithTimeout(ctx, apiserver.RequestTimeout)
		answer, err := createAccessReview(ctx, client, leaseAttributes(cfg.Election, verb))
		cancel()
		if err != nil {
			f.Reason, f.Minor = "the rights on the Lease could not be queried: "+apiserver.Reason(err), true
			return Checklist{f}
		}
		if !answer.Allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		f.Reason = fmt.Sprintf("the account is not allowed to %s the Lease; `exporter rbac` prints the rights", strings.Join(missing, ", "))
	}
	return Checklist{f}
}

// leaseAttributes returns the attributes of a request on the Lease. A create request has no object name.
func leaseAttributes(e config.Election, verb string) *authorization.ResourceAttributes {
	namespace, name := e.NamespacedName()
	if verb == "create" {
		name = ""
	}
	return &authorization.ResourceAttributes{Verb: verb, Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Namespace: namespace, Name: name}
}
