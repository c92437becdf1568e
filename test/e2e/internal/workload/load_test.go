package workload

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// TestNothingIsWrittenAfterStop has an API server that carries out a request after its client has given up.
func TestNothingIsWrittenAfterStop(t *testing.T) {
	var begun, ended atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		begun.Add(1)
		time.Sleep(20 * time.Millisecond) // the work
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		ended.Add(1)
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`))
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := api.NewConfig()
	config.Clusters["c"], config.Contexts["c"], config.CurrentContext = &api.Cluster{Server: server.URL}, &api.Context{Cluster: "c"}, "c"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cluster, err := Connect(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	load := cluster.Start(t.Context(), Plan{Namespace: "n", Prefix: "p", Kinds: []Kind{ConfigMaps}, Objects: 1 << 30, Clients: 4})
	load.AwaitOperations(10)
	load.Stop()
	if begun, ended := begun.Load(), ended.Load(); begun != ended {
		t.Errorf("%d requests, and %d of them are carried out", begun, ended)
	}
}
