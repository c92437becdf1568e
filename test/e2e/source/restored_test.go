package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestEtcdRestoreUnderLoadIsNotSilent kills the exporter while objects are created and deleted under the same names,
// restores etcd from an earlier backup, and creates the names again: every change of each is emitted.
func TestEtcdRestoreUnderLoadIsNotSilent(t *testing.T) {
	require.Long(t)
	t.Parallel()
	const names, writes = 64, 1500
	s := newFixture(t, ownControlPlane(t), []rule{{"select": []string{"configmaps"}}})
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	s.withEtcdStopped(func(dir string) error { return os.CopyFS(dir+"-earlier", os.DirFS(dir)) })
	s.createMarker(workload.ConfigMaps, s.name)

	name := func(i int) string { return fmt.Sprintf("o-%02d", i) }
	ctx, enough := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.createAndDelete(ctx, names, name)
	}()
	s.awaitCondition(func() string { // more writes than follow the restore, so that the stored position stays ahead
		if n := len(s.readRecords()); n < writes {
			return fmt.Sprintf("%d records; have %d", writes, n)
		}
		return ""
	})
	s.killExporter()
	enough()
	<-done

	s.withEtcdStopped(func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Rename(dir+"-earlier", dir)) })
	s.startExporter()
	s.awaitCondition(func() string {
		if len(gapRecords(s.readRecords(), workload.ConfigMaps)) == 0 {
			return "the gap"
		}
		return ""
	})
	all := make([]int, names)
	for i := range all {
		all[i] = i
	}
	forEach(t, all, func(ctx context.Context, i int) error {
		return errors.Join(s.cluster.Create(ctx, workload.ConfigMaps, s.name, name(i)),
			s.cluster.Change(ctx, workload.ConfigMaps, s.name, name(i), 1),
			s.cluster.Change(ctx, workload.ConfigMaps, s.name, name(i), 2))
	})
	s.awaitAgreement(workload.ConfigMaps)
	s.stopExporter()
	s.awaitAgreement(workload.ConfigMaps)
}

// createAndDelete creates and deletes objects until ctx ends.
func (s *fixture) createAndDelete(ctx context.Context, names int, name func(int) string) {
	clients := make(chan struct{}, 16)
	for i := 0; ctx.Err() == nil; i++ {
		clients <- struct{}{}
		go func() {
			defer func() { <-clients }()
			if s.cluster.Create(ctx, workload.ConfigMaps, s.name, name(i%names)) == nil {
				_ = s.cluster.Delete(ctx, workload.ConfigMaps, s.name, name(i%names))
			}
		}()
	}
	for range cap(clients) {
		clients <- struct{}{}
	}
}

// withEtcdStopped calls do with etcd's data directory while neither etcd nor the API server runs.
func (s *fixture) withEtcdStopped(do func(dir string) error) {
	s.t.Helper()
	s.requireNoError(s.controlPlane.KillAPIServer()) // an orderly stop waits for open watches
	s.requireNoError(s.controlPlane.StopEtcd())
	s.requireNoError(do(s.controlPlane.EtcdDir()))
	s.requireNoError(s.controlPlane.StartEtcd(s.t.Context()))
	s.requireNoError(s.controlPlane.StartAPIServer(s.t.Context()))
}

// awaitAgreement waits until the table that a consumer builds of a kind is the state of the API server.
func (s *fixture) awaitAgreement(kind workload.Kind) {
	s.t.Helper()
	s.awaitCondition(func() string {
		var table consumer.Table
		for _, r := range s.readRecords() {
			record, err := consumer.Parse(r.Payload)
			s.requireNoError(err)
			s.requireNoError(table.Apply(record))
		}
		var want, got []string
		objects, err := s.cluster.List(s.t.Context(), kind)
		s.requireNoError(err)
		for _, o := range objects {
			want = append(want, fmt.Sprintf("%s/%s@%s", o.GetNamespace(), o.GetName(), o.GetResourceVersion()))
		}
		for _, o := range table.Objects(consumer.Resource{Cluster: "e2e", Group: kind.Resource.Group, Resource: kind.Resource.Resource}) {
			got = append(got, fmt.Sprintf("%s/%s@%s", o.Namespace, o.Name, o.ResourceVersion))
		}
		slices.Sort(want)
		slices.Sort(got)
		if slices.Equal(want, got) {
			return ""
		}
		return fmt.Sprintf("agreement: the API server has\n%v\nthe stream has\n%v", want, got)
	})
}
