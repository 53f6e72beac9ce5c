# The verbs of the project. CI calls these and nothing else.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
RUN := $(BIN)/python

.PHONY: help install check format test demo serve bench behaviour serving wrk steady chaos docs \
	realmodels backend fuzz telemetry prometheus rules clients slow clean

help:
	@echo "make install      create .venv and install everything that is pinned in constraints.txt"
	@echo "make check        lint, format, types, layers, names and sizes"
	@echo "make test         the tests, some minutes"
	@echo "make demo         compile a real model, serve it, read a picture with it"
	@echo "make serve        the same server, kept running, with a curl to try"
	@echo "make bench        the numbers of README.md, measured again"
	@echo "make behaviour what we and other servers do when calls go wrong, one table"
	@echo "make serving      castiron and other servers under load, beside each other; needs wrk"
	@echo "make steady       ten minutes of constant load on castiron"
	@echo "make chaos        workers killed and stopped, slow disk, little memory and CPU, under load"
	@echo "make docs         check the links of the documentation and the calls it names"
	@echo "make format       let the formatter have its way"
	@echo "slow suites: make realmodels, make backend, make fuzz, make clients, make telemetry; make slow runs all of them"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[server,steps,test,bench]'
	touch $(STAMP)

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(RUN) -m tools.check_names

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: install
	$(RUN) -m pytest

realmodels: install
	$(RUN) -m pytest -m "realmodel and slow"

backend: install
	$(RUN) -m pytest -m "" tests/backend

# So many odd requests, and damaged files of each kind.
REQUESTS ?= 100000
FILES ?= 10000

fuzz: install
	$(RUN) -m pytest -m hypothesis --hypothesis-profile=thorough
	$(RUN) -m tests.fuzz --requests $(REQUESTS)
	$(RUN) -m tests.fuzz.files --count $(FILES)

# The generated TypeScript client, compiled and run by Node; the compiler goes to an ignored folder.
clients: install
	npm ci --prefix tests/contract/client --no-audit --no-fund
	$(RUN) -m pytest -m slow tests/contract

prometheus:
	command -v prometheus promtool || \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends prometheus; }

# Rules by promtool, and every query of every dashboard by a live Prometheus.
rules: install prometheus
	$(RUN) -m pytest -n0 -m slow tests/telemetry/test_rules.py tests/telemetry/test_live.py

telemetry: install prometheus
	$(RUN) -m pytest -m "" tests/telemetry

slow: realmodels backend fuzz clients telemetry chaos

demo: install
	$(RUN) -m examples.demo

serve: install
	$(RUN) -m examples.demo --keep

bench: install
	$(RUN) -m bench $(WRITE)

behaviour: install
	$(RUN) -m bench.behaviour $(WRITE)

# How often each server has its turn, and which servers do.
ROUNDS ?= 5
SERVERS ?= castiron MLServer LitServe BentoML

wrk:
	command -v wrk || \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends wrk; }

serving: install wrk
	$(RUN) -m pytest -n0 -m slow tests/bench/test_serving.py
	$(RUN) -m bench.serving tables --rounds $(ROUNDS) --only $(SERVERS) $(WRITE)

MINUTES ?= 10
MODEL ?= mobilenet_v2

steady: install
	$(RUN) -m bench.serving steady --minutes $(MINUTES) --model $(MODEL)

# Of all faults together; each also takes the start of a server.
CHAOS_SECONDS ?= 120

chaos: install
	$(RUN) -m bench.chaos --seconds $(CHAOS_SECONDS) $(WRITE)

docs: install
	$(RUN) -m tools.check_docs

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
