# make demo and make test set up their own environment in .venv; PIP_ARGS is passed on to pip
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
# of the tests, with a thread each: one waits for a browser or a server, mostly
PROCESSES := $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')

# the tests start many processes, each of which would compile the modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo models test slow soak docs lint wheel clean

demo: .venv/installed
	$(BIN)/regard demo

# DATA: a folder with cmudict/ and tatoeba-es-en/; MODELS: further options of the script
models: .venv/installed
	$(BIN)/python tools/make_models.py --data '$(DATA)' $(MODELS)

# TESTS: options of pytest
test: .venv/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(PROCESSES) --dist worksteal $(TESTS)

# whole runs of several seconds each, and what needs a browser
slow: .venv/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest -m 'slow and not soak' -n $(PROCESSES) --dist worksteal

soak: .venv/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest -m 'slow or soak or hypothesis' --hypothesis-profile soak -n $(PROCESSES) --dist worksteal

docs: .venv/documented
	$(BIN)/sphinx-build -W --keep-going -q -j 4 -b html docs docs/_build/html

lint: .venv/linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

wheel: .venv/bin/python
	rm -rf dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean:
	rm -rf .venv dist demo

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first: another package asking for it must find the pinned build
.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[serve]'
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[test]'
	touch $@

# everything, for CI: one call of pip resolves the packages and builds this one once
.venv/complete: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[test,docs,dev]'
	touch .venv/tested .venv/documented .venv/linted $@

.venv/documented: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	touch $@

.venv/linted: .venv/tested
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@
