// Command kube-controller-manager is the Kubernetes controller manager, unchanged, built from its Go module.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the --logging-format=json flag of the original command
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the client metrics of the original command
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version metric of the original command
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	os.Exit(cli.Run(app.NewControllerManagerCommand()))
}
