package source

import (
	"context"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// LoadFunc returns the stored state of a resource and passes each known object of it to known, unless known is nil. resource
// has the version in which it will be read, if that is known. A resource without stored state is a zero
// event.StoredResource.
type LoadFunc = func(resource event.Resource, known func(event.Known)) (event.StoredResource, error)

// ShapeFunc wraps the append function of one scope; rule is the index of the rule that made the scope.
type ShapeFunc = func(rule int, to event.AppendFunc) event.AppendFunc

// Config holds the dependencies of a Source. Client, Rules, Load, StoredResources, SetScopes, Append, DropResource and Log
// are required. The Source keeps a copy and never changes it. Every function may be called from any goroutine.
type Config struct {
	Client *apiserver.Client
	// Cluster is the cluster name in every change. If empty, it is the UID of the namespace kube-system.
	Cluster string
	// Rules select the resources. They must be valid.
	Rules []selection.Rule
	// Discovery is the result of a recent discovery, or nil. With it the first poll sends no request; the next poll follows
	// soon after.
	Discovery *Discovery
	// Applied, if not nil, is called once: when the rules have been applied to what the API server serves.
	Applied func()
	// Listed, if not nil, is called when the list of a scope is complete, with the time of its first request and how many
	// objects it had. It does not block.
	Listed func(scope string, began time.Time, objects int)
	// Interval is the time between discovery polls; 0 means five seconds. While every trigger is being watched, polls follow
	// triggers, and otherwise come every 30 seconds.
	Interval time.Duration

	// Load is called for a resource before the first Append for that resource.
	Load LoadFunc
	// StoredResources returns the names of all resources with stored state. The known objects of those that are no longer
	// served or selected are emitted as deleted.
	StoredResources func() ([]string, error)
	// SetScopes replaces the stored scopes of a resource. The result is durable when it returns.
	SetScopes func(ctx context.Context, r event.Resource, scopes []event.StoredScope) error
	// Append stores observations. It is called concurrently for different scopes, and in order for one scope.
	Append event.AppendFunc
	// Shape, if not nil, is called once for each scope and wraps Append for that scope.
	Shape ShapeFunc
	// Guard, if not nil, decides when what is read may be emitted.
	Guard Guard
	// DropResource removes the stored state of a resource that is no longer served or selected. It takes effect after
	// everything appended before it.
	DropResource func(ctx context.Context, resource string) error
	// BodiesFilled records that the missing bodies of a resource have been appended, as far as the API server still has
	// them. It is required if Load can return BodiesMissing.
	BodiesFilled func(ctx context.Context, resource string) error
	// Watermarks are the series of watermarks that each scope emits from its first complete state on. Shape sees them too.
	Watermarks []WatermarkSeries
	// PaceSnapshot, if not nil, waits until more of a snapshot for one sink may be appended. It returns only the error of ctx.
	PaceSnapshot func(ctx context.Context, sink string) error
	// AwaitDelivered, if not nil, waits until a sink has received everything that Flush has made durable. It returns only the
	// error of ctx. The end of a snapshot for the sink is appended after that.
	AwaitDelivered func(ctx context.Context, sink string) error
	// Flush waits until Load returns everything that was appended before the call. Nil if Append already waits.
	Flush func(ctx context.Context) error
	// LostReason is the reason why stored positions are missing ("the journal was damaged"); empty if none are. Every
	// resource that is served at the start then begins with a gap record. Resources served later were not watched before
	// and begin without one.
	LostReason string
	// GapsRecorded is called once every such scope has durably stored that it begins with a gap (I5). It is required with
	// LostReason or ResetCluster.
	GapsRecorded func(ctx context.Context) error

	// StoredClusterUID is the UID of the cluster that the stored state was read from; empty if unknown.
	StoredClusterUID string
	// RecordCluster stores that UID, the first time it is known. It may be nil.
	RecordCluster func(ctx context.Context, uid string) error
	// ResetCluster removes the stored state of all scopes because the API server now belongs to another cluster, and stores
	// the new UID and the reason. If nil, another cluster ends Run.
	ResetCluster func(ctx context.Context, uid, reason string) error

	Log *slog.Logger
}

// Discovery is the result of a discovery request.
type Discovery struct {
	Catalog selection.Catalog // what the API server serves
	Failed  []string          // groups without an answer; the catalog has their previous state
}

// StartError reports that a Source could not start because of the cluster it found. Nothing has been observed.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }
