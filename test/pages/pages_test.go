package pages

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
)

// exporterRuns is what pages see of "exporter run": it watches.
var exporterRuns = command{begins: "bin/exporter run", ready: `msg=watching`}

// TestTheReadmeRuns: own changes in the terminal with one command after the build, in Kafka with two.
func TestTheReadmeRuns(t *testing.T) {
	w := newWalk(t, running(t), []command{
		{begins: "bin/exporter tap", ready: `watching 2 resources`, prints: []string{`\+ deployments\.apps default/readme`}},
		exporterRuns,
		{
			begins: "kafka-console-consumer.sh", ready: `"type":"snapshot.end"`,
			prints: []string{`"type":"added"[^\n]*"resource":"deployments"[^\n]*"name":"readme"`},
		},
	})
	w.follow("README.md")
	w.run("a change of one's own", "kubectl create deployment readme --image nginx\n")
	w.awaitPrints()
	w.run("tidying up", "kubectl delete deployment readme\n")
}

func TestTheQuickStartRuns(t *testing.T) {
	w := newWalk(t, running(t), []command{
		{
			begins: "bin/exporter tap", ready: `watching 2 resources`,
			prints: []string{`\+ deployments\.apps default/web`, `nginx:1\.25 → nginx:1\.26`, `\+ configmaps default/colours`},
		},
		exporterRuns,
		{
			begins: "kafka-console-consumer.sh", ready: `"type":"snapshot.end"`,
			prints: []string{
				`"type":"snapshot"[^\n]*"name":"colours"`, `"type":"updated"[^\n]*"name":"sea"[^\n]*"depth":"deeper"`,
				`"type":"deleted"[^\n]*"name":"sea"`,
			},
		},
	})
	w.follow("docs/quickstart.md")
	w.awaitPrints()
}

// produceHostile writes what a destination may hold in its worst hour into a topic that every recipe's pattern finds, until
// the walk has ended.
func (w *walk) produceHostile() {
	w.t.Helper()
	const topics = "kafka-topics.sh --bootstrap-server 127.0.0.1:9092 --topic k8s.hostile "
	w.run("hostile records", topics+`--create --partitions 1
		python3 `+testdata(w.t, "produce.py")+` 127.0.0.1:9092 k8s.hostile < pkg/consumer/testdata/hostile.jsonl`)
	w.last = topics + "--delete"
}

// makeBuild is what recipes take for granted.
const makeBuild = "make build\n"

func TestTheGoRecipeRuns(t *testing.T) {
	w := newWalk(t, running(t), []command{exporterRuns, {
		begins: "go run ./docs/recipes/go", ready: `snapshot.end`,
		prints: []string{`added default/go; there are [1-9]`, `updated default/go;`, `deleted default/go;`},
	}})
	w.run("a build", makeBuild)
	w.follow("docs/recipes/go.md")
	w.awaitPrints()
}

func TestThePythonRecipeRuns(t *testing.T) {
	w := newWalk(t, running(t), []command{exporterRuns, {
		begins: "python3 docs/recipes/table.py", ready: `snapshot.end configmaps`,
		prints: []string{
			`added configmaps default python\n`, `deleted configmaps default python\n`, `configmaps shop text\n`, `deleted configmaps shop kept\n`,
		},
	}})
	w.run("a build", makeBuild)
	w.produceHostile()
	w.follow("docs/recipes/python.md")
	w.awaitPrints()
}

func TestThePostgreSQLRecipeRuns(t *testing.T) {
	w := newWalk(t, running(t), []command{exporterRuns, {begins: "python3 docs/recipes/postgresql.py", ready: `stored`}})
	w.run("a build", makeBuild)
	w.run("something that runs", "kubectl create deployment shop --image shop:7\n")
	w.follow("docs/recipes/postgresql.md")
	const colour = `psql --tuples-only --command "SELECT name, object->'data'->>'colour' FROM state_at(now()) WHERE name = 'rows'"`
	w.await(colour, `rows +\| green`)
	w.await(`psql --command "SELECT object->'spec' FROM state_at(now()) WHERE resource = 'deployments' AND name = 'shop'"`, `shop:7`)
	w.run("a delete", "kubectl delete configmap rows\nkubectl delete deployment shop\n")
	w.await(colour, `^\s*$`)
	w.produceHostile()
	w.await(`psql --tuples-only --command "SELECT object->'data'->>'regex' FROM state_at(now()) WHERE cluster = 'a' AND name = 'text'"`,
		`\[\^\\u0000-\\u007f\]`)
	w.await(`psql --tuples-only --command "SELECT name FROM state_at(now()) WHERE resource = 'roles'"`, `^ *h%00i\s*$`)
}

func TestTheKafkaConnectRecipeRuns(t *testing.T) {
	w := newWalk(t, running(t), []command{exporterRuns, {begins: "connect-standalone.sh", ready: ``}})
	w.run("a build", makeBuild)
	w.follow("docs/recipes/kafka-connect.md")
	w.await("cat changes.jsonl", `(?m)^\{"id":.*"type":"added".*"resource":"configmaps".*"name":"connect"`)
	w.run("tidying up", "kubectl delete configmap connect\n")
}

// operatorsConfig is the file that pages for operators take for granted, with what the chart needs.
const operatorsConfig = `
cluster: {name: dev}
resources: [{select: [configmaps, deployments.apps]}]
sinks:
  - name: bus
    kafka: {brokers: ["127.0.0.1:9092"], topic: "operators.{resource}", createTopics: {enabled: true}}
journal: {dir: /var/lib/kubecdc, maxBytes: 7Gi}
admin: {listen: ":8080"}
audit: {stamps: {enabled: true}}
`

// TestThePagesForOperatorsRun: on a cluster without nodes, so that what is installed is accepted and runs no Pod.
func TestThePagesForOperatorsRun(t *testing.T) {
	s := running(t)
	helm, err := build.Helm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := newWalk(t, s, []command{{begins: "exporter run", ready: `msg=watching`}})
	w.env = append(w.env, "KUBECDC_JOURNAL_DIR=data", "PATH="+filepath.Join(w.dir, "bin")+":"+filepath.Dir(helm)+":"+pathOf(w.env))
	w.run("a build, and what the pages take for granted", makeBuild+"ln -sf '"+helm+"' bin/helm\ncat > config.yaml <<'EOF'"+operatorsConfig+"EOF\ncp config.yaml exporter.yaml")
	t.Cleanup(func() {
		if out, err := w.shell(`
			helm uninstall kubecdc --namespace kubecdc --ignore-not-found
			kubectl delete -k deploy/kustomize/base --ignore-not-found --wait=false
			exporter audit-policy --stamp --config config.yaml | kubectl delete --ignore-not-found -f -`); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	w.follow("docs/operations.md")
	for _, page := range []string{"docs/troubleshooting.md", "docs/commands.md", "docs/audit-trail.md", "docs/journal.md"} {
		w.follow(page)
	}
	w.run("another namespace", "helm uninstall kubecdc --namespace kubecdc")
	w.follow("deploy/helm/kubecdc/README.md")
}

// pathOf returns the last PATH of an environment, which is the one that counts.
func pathOf(env []string) (path string) {
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	return path
}
