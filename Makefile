PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Tests and the demo never need a GPU, and TensorFlow's start-up notices are noise.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test test-slow test-oldest lint types format clean

demo: $(VENV)/.installed
	$(BIN)/python examples/multiview_digits.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS="-c constraints-oldest.txt"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/flake8 .

types: $(VENV)/.installed
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml $(wildcard constraints-oldest.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "proxnet_tf needs Python >= 3.10")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' $(CONSTRAINTS)
	touch $@

clean:
	rm -rf .venv .venv-oldest build dist *.egg-info outputs .pytest_cache .mypy_cache .ruff_cache
