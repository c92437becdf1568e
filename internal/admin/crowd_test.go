package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestACrowdGetsOneAnswer has a thousand requests come while one is being answered, each with something else that an answer
// does not depend on: all of them together cost one more answer.
func TestACrowdGetsOneAnswer(t *testing.T) {
	for _, path := range []string{"/metrics?", "/readyz?verbose&", "/?", "/status.json?"} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var snapshots, answered atomic.Int32
				hold := make(chan struct{})
				s := New(Options{Snapshot: func() Snapshot {
					snapshots.Add(1)
					<-hold
					return Snapshot{}
				}})
				var all sync.WaitGroup
				ask := func(i int) {
					r := httptest.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1%sname=%d", path, i), nil)
					r.Header.Set("Accept-Encoding", fmt.Sprintf("identity;q=0.%d", i))
					w := httptest.NewRecorder()
					s.handler.ServeHTTP(w, r)
					if w.Code == http.StatusOK && w.Body.Len() > 0 {
						answered.Add(1)
					}
				}
				all.Go(func() { ask(0) })
				synctest.Wait()
				for i := range 1000 {
					all.Go(func() { ask(i) })
				}
				synctest.Wait()
				close(hold)
				all.Wait()
				if snapshots.Load() > 2 || answered.Load() != 1001 {
					t.Errorf("%d answers came from %d snapshots; want 1001 from 2", answered.Load(), snapshots.Load())
				}
			})
		})
	}
}
