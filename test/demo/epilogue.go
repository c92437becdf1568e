package main

// epilogue is the last thing that a user reads.
const epilogue = `
   Now with your own cluster and bus. Save this as my.yaml:

       resources:
         - select: ["deployments.apps", "configmaps", "*.example.com"]
       sinks:
         - name: bus
           nats:
             url: "nats://127.0.0.1:4222"
             stream: K8S
             subject: "k8s.{cluster}.{group}.{resource}.{namespace}.{name}"
             create: {enabled: true}
         # or: kafka: {brokers: ["127.0.0.1:9092"], topic: "k8s.{group}.{resource}", createTopics: {enabled: true}}
       journal: {dir: ./data}

       bin/exporter validate --config my.yaml
       bin/exporter run --config my.yaml          # uses $KUBECONFIG or ~/.kube/config

   Without a bus:    bin/exporter run --history ./history, then bin/exporter history log
   In a cluster:     docs/quickstart.md#in-a-cluster-on-kind (builds the image: none is published)
   Every key:        configs/reference.yaml, docs/configuration.md
   To play by hand:  (cd test/demo && go run . --keep)
`

// invitation takes the kubeconfig, the URL of NATS, the address of the admin server and the exporter's log.
const invitation = `   Everything runs on until Ctrl-C, and what arrives is still printed below. In another terminal:

       export KUBECONFIG=%s
       kubectl -n shop create configmap hello --from-literal=who=me
       kubectl -n shop edit configmap settings

       export NATS_URL=%s
       nats stream view K8S

   The exporter's status page is http://%s/, its log %s
`
