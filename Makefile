# Everything a developer or a pipeline runs. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

ROOT    := $(CURDIR)
CACHE   := $(ROOT)/.cache
TOOLS   := $(CACHE)/tools
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
IMAGE   ?= localhost/kubecdc/exporter:$(VERSION)

# Modules of their own, so that the product's go.mod stays small.
# tools/deploy has no code: it pins Helm and kustomize.
NESTED := test/e2e test/demo test/bench tools/release

HELM := CGO_ENABLED=0 go -C tools/deploy tool helm
# A chart's version has to be a semantic one: that of a tag, else the one in Chart.yaml.
CHART_VERSION := $(if $(filter v%,$(VERSION)),--version $(patsubst v%,%,$(VERSION)))
RELEASE_PLATFORMS := linux/amd64,linux/arm64,darwin/amd64,darwin/arm64
RELEASE = go build -C tools/release -o $(ROOT)/bin/release . && bin/release

GOLANGCI_LINT_VERSION := v2.15.0
GOVULNCHECK_VERSION   := v1.9.0

##@ Try and test

.PHONY: demo
demo: build ## Start a control plane and NATS, and watch changes arrive (DEMO_FLAGS=--keep stays)
	cd test/demo && go run . $(DEMO_FLAGS)

MODULE_TESTS := $(addprefix test-module/,. $(NESTED)) test-allocations

# RACE=-race runs the tests under the race detector, which takes five times the processor time.
RACE ?=

.PHONY: test
test: vet parts ## Run the tests, on real servers; those that take long too with REQUIRE_INTEGRATION=1
	$(MAKE) --no-print-directory --keep-going --jobs=2 $(MODULE_TESTS)

.PHONY: race
race: ## Run the tests under the race detector; as the pipeline does with REQUIRE_INTEGRATION=1
	$(MAKE) --no-print-directory test RACE=-race

# Two modules at a time, and two packages for each processor: their tests mostly wait for servers and for the disk. The race
# detector uses the processors up.
.PHONY: $(MODULE_TESTS)
$(filter-out test-module/test/e2e test-allocations,$(MODULE_TESTS)): test-module/%:
	go test -C $* $(or $(RACE),-p $$((2 * $$(getconf _NPROCESSORS_ONLN)))) -shuffle=on -parallel 4 -timeout 60m ./...

# End-to-end tests run the exporter as it is released, as a process of its own. The race detector would watch only the clients
# in the tests, for most of their processor time. `make e2e-race` has it in both.
test-module/test/e2e:
	go test -C test/e2e $(RACE) -shuffle=on ./internal/...
	cd test/e2e && go test -shuffle=on -timeout 60m $$(go list ./... | grep -v /internal/)

# They are counted without the race detector.
test-allocations:
	go test -count=1 ./test/allocations

.PHONY: test-short
test-short: ## Run the tests that need no server
	go test -short -shuffle=on ./...

FUZZ_TIME ?= 10m

.PHONY: fuzz
fuzz: ## Fuzz everything that parses, each target for FUZZ_TIME (10m)
	grep -roE '^func Fuzz\w+' --include=*_test.go internal pkg | while IFS=: read -r file func; do \
		go test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZ_TIME) "./$${file%/*}" || exit; done

##@ Measure, on an idle machine

.PHONY: bench
bench: ## Measure the exporter, its sinks and a take-over against the usual pipeline and clients, each in one run
	cd test/bench && go run ./cmd/bench && go run ./cmd/lanes && go run ./cmd/takeover

.PHONY: performance
performance: ## Measure what a change costs next to the least and the usual, and write docs/performance.md (a quarter of an hour)
	cd test/bench && go run ./cmd/bench -only costs -markdown $(ROOT)/docs/performance.md

.PHONY: microbench
microbench: ## Run the Go benchmarks of single packages
	go test -run '^$$' -bench . -benchmem ./pkg/... ./internal/...

##@ Prove at full size, in minutes to hours

.PHONY: fullsize
fullsize: ## Run the tests that are small in the pipeline at full size (minutes)
	LIVES_SEEDS=50 REQUIRE_INTEGRATION=1 go test -timeout 30m -run TestRandomLives ./pkg/sinks/kafka ./pkg/sinks/nats
	KUBECDC_E2E_CHANGES=50000 REQUIRE_INTEGRATION=1 \
		go test -C test/e2e -v -timeout 30m -run TestAPIServerRestartsAndCutWatchesLoseNothing .
	AWAY_SECONDS=600 REQUIRE_INTEGRATION=1 go test -v -timeout 40m -run TestAChangeThatIsReadLateHasTheTimeItWasMade/listed ./pkg/source
	$(MAKE) failovers
	KUBECDC_E2E_FAULT=6m REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 60m -run TestEachFaultIsNamed ./faults
	KUBECDC_E2E_WALKS=5 KUBECDC_E2E_WALK_STEPS=200 KUBECDC_E2E_INTERRUPTED_EDITS=100 REQUIRE_INTEGRATION=1 \
		go test -C test/e2e -timeout 30m -run 'TestReloadsEqualRestarts|TestEditsDuringListsKeepTheTableRight' ./source
	KUBECDC_E2E_RELOADS=50 KUBECDC_E2E_RATE=500 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 30m -run TestReloadsLoseAndRepeatNothing .
	KUBECDC_E2E_TAP_SECONDS=600 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 30m -run TestTapOfBusyClusterUsesLittleMemory .
	KUBECDC_E2E_MOMENTS=200 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 60m -run TestHistoryEqualsThatOfEtcd .
	KUBECDC_E2E_HISTORIES=60 REQUIRE_INTEGRATION=1 go test -C test/e2e -timeout 30m -run TestRandomEditsOfRulesKeepTheTableRight ./source
	KUBECDC_E2E_LISTS=42 REQUIRE_INTEGRATION=1 go test -C test/e2e -timeout 30m -run TestInterruptedFirstListLosesNothing ./source

.PHONY: e2e-race
e2e-race: parts ## Run the end-to-end tests with the race detector in the tests and in the exporter (an hour)
	KUBECDC_E2E_RACE=1 REQUIRE_INTEGRATION=1 go test -C test/e2e -race -shuffle=on -timeout 150m ./...

.PHONY: failovers
failovers: ## Take the active exporter away 240 times in four ways, for each bus of the state (two hours; RATE=200 on two cores)
	KUBECDC_E2E_FAILOVERS=$(or $(FAILOVERS),60) KUBECDC_E2E_RATE=$(or $(RATE),1000) KUBECDC_E2E_REPLICAS=3 KUBECDC_E2E_CLOCKS=1 KUBECDC_E2E_CUTS=$(or $(CUTS),20) REQUIRE_INTEGRATION=1 \
		go test -C test/e2e -v -timeout 300m -run 'TestFailoversNeverLoseRepeatOrReorder|TestFailoverWithClocksAnHourApart|TestVerifyFindsNoFalseDifferenceAfterFailover|TestActiveYieldsToStandby' .

.PHONY: plants
plants: ## Have 41 manipulations found and repaired one by one, in five formats on two buses, beside 100 quiet resources (an hour)
	KUBECDC_E2E_PLANTS_AT_ONCE=1 KUBECDC_E2E_QUIET=100 REQUIRE_INTEGRATION=1 \
		go test -C test/e2e -v -timeout 120m -run TestVerifyNamesAndRepairsWhatIsPlanted .

.PHONY: equality
equality: ## Compare failovers from the state with restarts on the journal, over 60 faults for each bus (half an hour)
	KUBECDC_E2E_EQUALITIES=$(or $(EQUALITIES),10) REQUIRE_INTEGRATION=1 \
		go test -C test/e2e -v -timeout 60m -run TestFailoversEqualRestarts .

.PHONY: attribution
attribution: ## Name the users behind many random writes, from the audit log, from stamps and from both (hours)
	KUBECDC_ATTRIBUTION_WRITES=5000 KUBECDC_E2E_CASCADES=1 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 60m \
		-run 'TestUsersAtTheSameObjectsAreNamed|TestEventsOfSeveralAPIServersAreUsed|TestCascadeIsAttributed|TestStampsDoNotKeepControllersFromTheirWork|TestAcceptedAuditEventsAreNeverLost|TestAPIServerLossesAreReported|TestAuditEventSecretsAreNeverShown' .
	KUBECDC_ATTRIBUTION_WRITES=20000 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -count 3 -timeout 60m -run TestGeneratedRequests .

.PHONY: nats-exact
nats-exact: ## Deliver a million changes to replicated NATS, while leaders, connections and the delivering process are killed
	cd test/bench && go build -o "$(CACHE)/natsexact" ./cmd/natsexact && "$(CACHE)/natsexact" $(NATS_EXACT_FLAGS)

.PHONY: memory
memory: ## Prove at full size how little memory a million objects take (minutes)
	KUBECDC_E2E_MEMORY=1 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 60m \
		-run 'TestManyObjectsFitIntoLittleMemory|TestAMillionObjectsFitIntoMemory|TestLargeObjectsAreReadInSmallPages' ./source

.PHONY: unhealthy
unhealthy: ## Let one topic of ten, and one broker of three, fail for UNHEALTHY_FOR in each way (two hours; an idle machine)
	UNHEALTHY_FOR=$(or $(UNHEALTHY_FOR),10m) REQUIRE_INTEGRATION=1 go test -v -timeout 3h -run TestOneFailing ./test/unhealthy

.PHONY: refusals
refusals: ## Let destinations of 1 to 300 lanes refuse 1 to 99 % of the changes, with two restarts each (minutes)
	KUBECDC_E2E_REFUSALS=1 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 60m \
		-run 'TestRefusedChangesStopNoOthers|TestADestinationThatRefusesEverythingMakesTwentyDeadLetters' ./faults

.PHONY: telemetry
telemetry: ## Send metrics and spans to a real OpenTelemetry collector, which is built first (minutes)
	KUBECDC_E2E_TELEMETRY=1 REQUIRE_INTEGRATION=1 go test -C test/e2e -v -timeout 30m -run TestACollectorReceives .

.PHONY: recipes
recipes: ## Run every recipe whose software can be fetched, the large ones too (minutes)
	KUBECDC_RECIPES=1 REQUIRE_INTEGRATION=1 go test -v -count=1 -timeout 60m -run 'Recipe|Views' ./test/pages ./internal/sql

##@ Build, check, release

.PHONY: parts
parts: ## Build the real servers that tests and demo run (once, then cached)
	go run ./test/parts/cmd/parts build all

.PHONY: build
build: ## Build bin/exporter
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/exporter ./cmd/exporter

.PHONY: image
image: ## Build the container image, without a daemon: an OCI layout, tarballs, SBOM and notices in dist/
	$(RELEASE) image -out dist -version $(VERSION)

.PHONY: push
push: ## Upload the image that "make image" has built (IMAGE=REGISTRY/REPOSITORY:TAG)
	$(RELEASE) push -out dist -to $(IMAGE)

.PHONY: release
release: ## Write archives, checksums, SBOMs, provenance, the chart and the image into dist/ (RELEASE_KEY=FILE signs; DOWNLOAD_URL=URL adds a krew plugin and a formula)
	rm -rf dist
	$(RELEASE) image -out dist -version $(VERSION)
	$(HELM) package ../../deploy/helm/kubecdc --destination ../../dist --app-version $(VERSION) $(CHART_VERSION)
	$(RELEASE) archive -out dist -version $(VERSION) -platforms $(RELEASE_PLATFORMS)
	$(if $(DOWNLOAD_URL),bin/release manifests -out dist -version $(VERSION) -platforms $(RELEASE_PLATFORMS) -download $(DOWNLOAD_URL))
	$(if $(RELEASE_KEY),bin/release sign -out dist -key $(RELEASE_KEY))

.PHONY: chart
chart: ## Lint the chart, render it with several values, apply each to a real API server; package it into dist/
	REQUIRE_INTEGRATION=1 go test -count=1 -timeout 20m ./deploy
	$(HELM) package ../../deploy/helm/kubecdc --destination ../../dist

SITE := $(CACHE)/site
SITE_DIR ?= $(ROOT)/dist/site

.PHONY: site
site: $(SITE)/bin/mkdocs ## Build the pages with search into dist/site; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --site-dir '$(SITE_DIR)'

$(SITE)/bin/mkdocs: tools/site/requirements.txt
	python3 -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --no-deps -r $<
	touch $@

.PHONY: screenshots
screenshots: ## Write the screenshots of the docs, with a real browser (a minute)
	REQUIRE_INTEGRATION=1 go test -C test/e2e -count=1 -timeout 30m -run TestPageFitsEveryScreenAndIsAccessible ./page -update

.PHONY: generate
generate: ## Write generated files: reference configuration and its page
	go generate ./...

.PHONY: vet
vet:
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); [[ -z "$$unformatted" ]] || { echo "not gofmt-clean:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	for m in $(NESTED); do (cd $$m && go vet ./...); done

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## Run the linters
	$(TOOLS)/golangci-lint run ./...
	for m in $(NESTED); do (cd $$m && $(TOOLS)/golangci-lint run --config $(ROOT)/.golangci.yml ./...); done

$(TOOLS)/golangci-lint:
	GOBIN=$(TOOLS) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: vuln
vuln: ## Check dependencies for known vulnerabilities (asks the Go vulnerability database)
	go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: verify
verify: vet lint ## Check formatting, linters, and that generated files and go.mod are up to date
	go mod tidy -diff
	for m in $(NESTED); do (cd $$m && go mod tidy -diff); done
	before=$$(mktemp); git diff >$$before; $(MAKE) generate; git diff | diff $$before - || \
		{ echo "generated files were not up to date: commit what make generate has written" >&2; exit 1; }; rm $$before

.PHONY: clean
clean: ## Remove built files; the cached servers too
	rm -rf bin $(CACHE)

# LIST prints the targets of the sections that begin with one of some words.
LIST = @awk -F ':.*\#\# ' -v sections='$(1)' '/^\#\#@ / {shown = substr($$0, 5) ~ "^(" sections ")"; if (shown) print substr($$0, 5)} \
	shown && /^[a-z0-9-]+:.*\#\# / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help
help: ## Show this list
	$(call LIST,Try|Build)
	@echo "make proofs lists what measures, and what proves promises at full size, in minutes to hours."

.PHONY: proofs
proofs:
	$(call LIST,Measure|Prove)
