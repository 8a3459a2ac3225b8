PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Tests and the demo never need a GPU, and TensorFlow's and pip's notices are noise.
export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PIP_ROOT_USER_ACTION ?= ignore
export NO_MKDOCS_2_WARNING ?= 1

.PHONY: demo benchmark test test-slow test-oldest wheel docs docs-serve notebooks lint types format clean

demo: $(VENV)/.installed
	$(BIN)/python examples/paper/quietly.py examples/paper/multiview_digits.py \
		--labels-per-class 2 --methods vanilla prox own rrm dccae --seeds 0 \
		--pretrain-epochs 100

benchmark: $(VENV)/.installed
	$(BIN)/python examples/benchmarks/all.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS="-c constraints-oldest.txt"

# Builds the source archive and from it the wheel, checks what a package index would show, installs
# the wheel without the checkout into an environment of its own, and uses it.
wheel: $(VENV)/.installed
	rm -rf build
	$(BIN)/python -m build --outdir build/wheel >/dev/null
	$(BIN)/twine check --strict build/wheel/*
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install -qq build/wheel/*.whl
	cd build/wheel && venv/bin/python -I ../../.ci/use_wheel.py

# The site, from the sources and from committed tables and figures: nothing is trained.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict --quiet

# Runs the notebooks of the built site.
notebooks: docs
	$(BIN)/python docs/notebooks.py

docs-serve: $(VENV)/.installed-docs
	$(BIN)/mkdocs serve

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml setup.cfg $(wildcard constraints-oldest.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "proxnet_tf needs Python >= 3.10")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --editable '.[dev]' $(CONSTRAINTS)
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install -qq --editable '.[docs]' $(CONSTRAINTS)
	touch $@

clean:
	rm -rf .venv .venv-oldest site build dist *.egg-info outputs .pytest_cache .mypy_cache .ruff_cache
