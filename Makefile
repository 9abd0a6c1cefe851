# Two commands:  make run   answers a question with a real model;  make test   passes the whole suite.
# Both set up .venv on their first run. PROMPT="..." make run  asks something else.
# make bench  measures this machine;  make peers  puts Fathom beside other engines (PEERS_ARGS="--only decode-1").

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PROMPT ?= What is the capital of France, and what is it known for?
export PROMPT

.PHONY: run test bench peers lint clean

run: $(VENV)/.installed
	@$(BIN)/fathom generate "$$PROMPT"

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.installed
	@for name in latency throughput startup prefix logprobs; do $(BIN)/fathom bench $$name || exit 1; echo; done

peers: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.peers $(PEERS_ARGS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fathom needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/cpu/*) | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[test,lint]'
	@touch $@

clean:
	rm -rf $(VENV)
