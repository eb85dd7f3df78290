# Everything runs in .venv, made from the project's own files. Nothing else needs to be set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo serve test test-core examples alone rehearsal check browser bench reproduce docs dist lowest clean

help: ## Show what can be made.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/demo.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[onnx,serving]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e '.[dev]' -e 'lab[mteb,rivals]'
	@touch $@ $(VENV)/demo.stamp $(VENV)/docs.stamp

$(VENV)/docs.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(VENV)/demo.stamp ## Fetch the models and 10,033 articles; search 25 questions live, and count what is found.
	$(BIN)/adacur demo

serve: $(VENV)/demo.stamp ## The page and the API over the demo's articles, at http://127.0.0.1:8000.
	$(BIN)/adacur serve

# One thread per worker: idle BLAS threads of two workers would fight over two cores. Compiled files are kept, whatever
# the machine says: tests start hundreds of interpreters. Which tests a worker takes, and which come first, is in
# conftest.py.
PYTEST := PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q
SEED := 1
EXPERIMENT := all

# What belongs to an extra, and the documents, which show everything.
BEYOND_CORE := tests/extras lab/tests tests/functional/test_docs.py tests/functional/test_docs_site.py \
	tests/functional/test_notebooks.py tests/functional/test_wording.py tests/contracts/test_options.py \
	tests/contracts/test_executors.py

test-core: check alone ## Lint, types, rooms, the tests of the core alone, and the core in an empty environment.
	$(PYTEST) -m "not int8 and not examples" $(foreach path,$(BEYOND_CORE),--ignore=$(path))

alone: ## The core in an environment with nothing else: a function, BM25, the best k.
	rm -rf build/alone && $(PYTHON) -m venv build/alone
	build/alone/bin/python -m pip install --quiet --disable-pip-version-check .
	build/alone/bin/python .ci/core_alone.py

test: check alone browser ## Lint, types, rooms, then every test; documents with an int8 model as on another processor.
	$(PYTEST) -m "not int8 and not examples"
	ADACUR_REHEARSAL=$(SEED) $(PYTEST) -m "int8 and not examples" tests/functional/test_docs.py

examples: $(VENV)/dev.stamp ## Every example of every page and notebook; make test runs those of the README, the quickstart and the API.
	$(PYTEST) -m "examples and not int8" tests/functional/test_docs.py
	ADACUR_REHEARSAL=$(SEED) $(PYTEST) -m "examples and int8" tests/functional/test_docs.py tests/functional/test_notebooks.py

rehearsal: $(VENV)/dev.stamp ## Every test with every int8 score moved, as on another processor; SEED=2 moves them otherwise.
	ADACUR_REHEARSAL=$(SEED) $(PYTEST)

# Where nobody may install anything, the tests of the page are skipped; on a build machine (CI set) that is an error.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,$(if $(shell command -v sudo 2>/dev/null),sudo))
CAN_INSTALL := $(and $(shell command -v apt-get 2>/dev/null),$(or $(filter 0,$(shell id -u)),$(AS_ROOT)))
APT := $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3

browser: ## Debian's Chromium, in which the page is tested; installed where it is missing.
ifeq ($(shell command -v chromium 2>/dev/null),)
ifneq ($(CAN_INSTALL),)
	$(APT) update
	$(APT) install -y --no-install-recommends chromium fonts-liberation
else
	@echo "chromium is missing and cannot be installed here: the page is not tested." >&2
	@test -z "$$CI"
endif
endif

check: $(VENV)/dev.stamp ## Lint, types and the rooms' imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

BUDGETS := 100

bench: $(VENV)/dev.stamp ## Overhead of a warm search, and every rival where there are folders of scores: make bench SCORES=dir DATA=dir BUDGETS=50,100.
	$(BIN)/python lab/benchmarks/search_overhead.py
	$(if $(SCORES),$(BIN)/python lab/benchmarks/recall_at_budget.py $(foreach dir,$(wildcard $(SCORES)/*),--scores $(dir)))
	$(BIN)/python lab/benchmarks/rivals.py --json build/rivals.json --budgets $(BUDGETS) $(if $(SCORES),--scores $(SCORES)) $(if $(DATA),--data $(DATA))
	test ! -e build/rivals.json || $(BIN)/python lab/benchmarks/rivals_table.py build/rivals.json

reproduce: $(VENV)/dev.stamp ## The paper's figures from stored results: make reproduce EXPERIMENT=oracles SCORES=dir DATA=dir computes what is missing.
	$(BIN)/python -m adacur_lab reproduce $(EXPERIMENT) $(if $(SCORES),--scores $(SCORES) --data $(DATA))

docs: $(VENV)/docs.stamp ## Build the documentation into site/; a warning is an error.
	$(BIN)/python docs/build.py

# Installed from the wheel alone, in an environment of its own, and tried in an empty folder.
dist: ## Build the wheel and the sdist into dist/, check them, and try the wheel as its first user would.
	$(PYTHON) -m venv build/dist
	build/dist/bin/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist && build/dist/bin/python -m build --outdir dist
	build/dist/bin/python -m build --wheel --outdir dist src/adacur_wikivital
	build/dist/bin/twine check --strict dist/*
	rm -rf build/wheel && $(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/adacur-*.whl)[onnx,serving]" dist/adacur_wikivital-*.whl
	build/wheel/bin/python .ci/smoke.py

lowest: ## The oldest allowed versions of the dependencies, and the tests of what uses them.
	.ci/lowest onnx,serving,http,evaluation,ir-datasets,int8,qdrant,lancedb,postgres,mcp tests/unit tests/contracts
	.ci/lowest all tests/unit/scorers tests/extras/hosts tests/extras/engines tests/extras/train tests/contracts

clean: ## Remove the environment and caches.
	rm -rf $(VENV) build dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
