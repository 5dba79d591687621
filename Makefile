# make test       sets up, checks, builds, makes the images, runs every behaviour once; prints its processor time
# make test-all   the same with every provider, runtime, build and combination, all clients, and all faults
# make endurance  a cluster under many random faults, for many minutes; SEED=7, SEED=random, COUNT=100, KINDS=kill
# make gpu-test   uses a graphics processor of this machine in sandboxes; IMAGE=base, RUNTIME=crun
# make check      linters and types only
# make web        builds the dashboard of web/ into src/warren/http/dashboard/static, which is committed
# make dist       what a release consists of, in dist/: sources, wheels of both machines, list of components, checksums
# make setup      packages of the system and .venv
# make docs       the documentation as a site, in build/site
# make clean      removes what was built (not .venv, not the test images)

VENV := .venv
BIN := $(VENV)/bin
CACHE := build/test-state
PYTHON_FILES := src packages tests bench scripts examples hatch_build.py
C_FILES := agent/*.c agent/*.h agent/fuzz/*.c agent/fuzz/*.h launcher/*.c launcher/*.h
CODE_VENV := build/code-venv
E2B_SDKS := build/e2b-sdks
ADAPTER_VENVS := build/adapters
DIST := dist
DIST_VENV := build/dist-venv
SHELL_FILES := quickstart.sh .ci/run scripts/system-packages scripts/find-python scripts/old-deepagents scripts/foreign-machine scripts/try-host \
    scripts/try-host.d/configure scripts/try-host.d/initrd

.DEFAULT_GOAL := build
.PHONY: setup code-venv e2b-newest e2b-sdks adapters build agent launcher test-agents images check web docs test tested test-all all-tested root endurance gpu-test dist clean

setup: $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml packages/attack/pyproject.toml scripts/system-packages scripts/find-python
	@python=$$(scripts/find-python) && PYTHON=$$python scripts/system-packages test && \
	{ [ -x $(BIN)/python ] || $$python -m venv $(VENV); }
	@echo "installing the Python packages"
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable '.[server]' --editable packages/attack --group dev
	@touch $@

# What cells of tests import, numpy and matplotlib for instance, and Warren itself never does.
code-venv: $(CODE_VENV)/.stamp

$(CODE_VENV)/.stamp: $(VENV)/.stamp
	@[ -x $(CODE_VENV)/bin/python ] || $(BIN)/python -m venv --without-pip $(CODE_VENV)
	@echo "installing what cells of tests import"
	@$(BIN)/pip --python $(CODE_VENV)/bin/python install --quiet --disable-pip-version-check --no-compile --group code
	@touch $@

# The official SDKs of E2B, each version in an environment of its own: tests talk to Warren with them. `make test` uses
# the newest for Python only.
E2B_VERSIONS := $(patsubst tests/e2b/sdks/%.txt,%,$(wildcard tests/e2b/sdks/*.txt))
E2B_NEWEST := $(shell printf '%s\n' $(E2B_VERSIONS) | sort -V | tail -n 1)

e2b-newest: $(E2B_SDKS)/$(E2B_NEWEST)/.stamp
e2b-sdks: $(E2B_VERSIONS:%=$(E2B_SDKS)/%/.stamp) $(E2B_SDKS)/js/.stamp

$(E2B_SDKS)/%/.stamp: tests/e2b/sdks/%.txt $(VENV)/.stamp
	@echo "installing E2B's SDK $*"
	@[ -x $(E2B_SDKS)/$*/bin/python ] || $(BIN)/python -m venv --without-pip $(E2B_SDKS)/$*
	@$(BIN)/pip --python $(E2B_SDKS)/$*/bin/python install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@

$(E2B_SDKS)/js/.stamp: tests/e2b/sdks/package.json tests/e2b/sdks/package-lock.json $(VENV)/.stamp
	@echo "installing E2B's SDK for JavaScript"
	@mkdir -p $(@D) && cp tests/e2b/sdks/package.json tests/e2b/sdks/package-lock.json $(@D)
	@cd $(@D) && npm ci --silent --no-audit --no-fund
	@touch $@

# The frameworks that have adapters, newest and oldest version, each in an environment of its own. A folder's file
# `python` has the minor version of Python that its framework needs, where that is later than ours.
ADAPTERS := $(patsubst tests/adapters/%.txt,%,$(wildcard tests/adapters/*/*.txt))

adapters: $(ADAPTERS:%=$(ADAPTER_VENVS)/%/.stamp)

$(ADAPTER_VENVS)/%/.stamp: tests/adapters/%.txt pyproject.toml $(VENV)/.stamp
	@echo "installing $*"
	@[ -x $(@D)/bin/python ] || { minor=$$(cat $(<D)/python 2>/dev/null || true) && \
	    python=$$(if [ "$$minor" ]; then scripts/find-python $$minor; else echo $(BIN)/python; fi) && \
	    $$python -m venv --without-pip $(@D); }
	@$(BIN)/pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@

build: agent launcher

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# What only `make test-all` runs: agent and launcher with sanitizers, and the fuzzers of the agent's parsers.
test-agents: setup
	@PYTHON=$(BIN)/python scripts/system-packages test-all
	@$(MAKE) --no-print-directory -C agent sanitized fuzz
	@$(MAKE) --no-print-directory -C launcher sanitized

agent launcher: setup
	@$(MAKE) --no-print-directory -C $@

images: setup
	@for file in base/rootfs/usr/bin/apt-get host/rootfs/etc/R/Renviron; do \
	    [ -e $(CACHE)/images/$$file ] || \
	    WARREN_STATE_DIR=$(CACHE) $(BIN)/warren image build $${file%%/*} || exit 1; \
	done

# What builds the dashboard; only those who change it, and the checks, need it.
WEB := web/node_modules/.stamp

$(WEB): web/package-lock.json $(VENV)/.stamp
	@echo "installing what builds the dashboard"
	@cd web && npm ci --silent --no-audit --no-fund
	@touch $@

web: $(WEB)
	@cd web && node build.mjs --sizes

check: build $(WEB)
	@for file in $(SHELL_FILES); do sh -n $$file || exit 1; done
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/python scripts/make_filters.py --check
	$(BIN)/python scripts/generate_api_types.py --check
	$(BIN)/python scripts/list_probes.py --check
	$(BIN)/ruff check --quiet $(wildcard $(PYTHON_FILES))
	$(BIN)/ruff format --quiet --check $(wildcard $(PYTHON_FILES))
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(wildcard $(C_FILES))
	$(BIN)/python scripts/corridor.py
	cd web && npx --no-install biome ci --error-on-warnings && npx --no-install tsc && npx --no-install tsc -p tests && \
	    node test.mjs && node build.mjs --check

TIMED := $$(scripts/find-python) scripts/timed.py $(MAKE) --no-print-directory

test: root
	@$(TIMED) tested

test-all: root
	@$(TIMED) all-tested

# The images are downloaded while the checks run.
tested: setup
	@$(MAKE) --no-print-directory -j2 images check e2b-newest
	$(BIN)/python tests/run.py $(PYTEST)

all-tested: setup
	@$(MAKE) --no-print-directory -j2 images check code-venv e2b-sdks adapters test-agents
	$(BIN)/python tests/run.py --all $(PYTEST)

root:
	@[ "$$(id -u)" = 0 ] || { echo "the tests start real sandboxes: run them as root (sudo make test)" >&2; exit 1; }

# Every fault that there is, as often as it is likely, is 62 faults.
endurance: COUNT ?= 62
endurance: root build images
	ENDURANCE_SEED=$(SEED) ENDURANCE_COUNT=$(COUNT) ENDURANCE_KINDS=$(KINDS) $(BIN)/python -m pytest \
	    tests/faults/cluster/test_cluster_random_faults.py

gpu-test: IMAGE ?= base
gpu-test: root build
	@WARREN_STATE_DIR=$(CACHE) $(BIN)/python scripts/gpu_test.py --image $(IMAGE) $(if $(RUNTIME),--runtime $(RUNTIME))

# zig, which compiles for both machines, is 400 MB: it has an environment of its own, which is kept.
dist: $(DIST_VENV)/.stamp
	@$(DIST_VENV)/bin/python scripts/dist.py $(DIST)

$(DIST_VENV)/.stamp: pyproject.toml scripts/find-python
	@python=$$(scripts/find-python) && $$python -m venv $(DIST_VENV)
	@$(DIST_VENV)/bin/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(DIST_VENV)/bin/pip install --quiet --disable-pip-version-check --group dist
	@touch $@

clean:
	@$(MAKE) --no-print-directory -C agent clean
	@$(MAKE) --no-print-directory -C launcher clean
	rm -rf dist build/programs .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src packages tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
