# make demo and make test set up their own environment in .venv; PIP_ARGS is passed on to pip
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin

.PHONY: demo test soak lint wheel clean

demo: .venv/installed
	$(BIN)/regard demo

test: .venv/tested
	$(BIN)/pytest

soak: .venv/tested
	$(BIN)/pytest -m soak

lint: .venv/linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

wheel: .venv/linted
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist

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

.venv/linted: .venv/tested
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@
