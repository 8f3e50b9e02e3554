# Two commands on a fresh machine: `make demo`, `make test`. Each sets up what it needs of .venv.

PYTHON ?= python3
TORCH_PIP ?=
JOBS ?= 2
BIN := .venv/bin
STAMPS := .venv/.stamps
SOURCES := cuvilc runtime/cuvil tests benchmarks examples

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-lora test test-all lint fmt golden conformance fuzz bench wheels clean machine

help:  ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMPS)/torch  ## .venv with both packages (editable) and every extra; quick when nothing changed

machine:
	@command -v $(PYTHON) >/dev/null || { echo "no Python: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python cannot make virtual environments: apt-get install python3-venv"; exit 1; }
	@command -v cc >/dev/null || { echo "no C compiler: apt-get install gcc libc6-dev"; exit 1; }

$(STAMPS)/venv: | machine
	$(PYTHON) -m venv .venv
	@mkdir -p $(@D) && touch $@

$(STAMPS)/packages: pyproject.toml runtime/pyproject.toml $(STAMPS)/venv
	@echo "cuvilc, cuvil and tools go into .venv: 1.4 GB, a minute or two"
	$(BIN)/pip install --quiet -e runtime -e '.[verify,cross,dev]'
	@touch $@

# Last, since it is large and only benchmarks and tests of exporters need it. The package index's
# default build carries CUDA libraries; TORCH_PIP names another index for a build without:
# make setup TORCH_PIP='--index-url ...' (docs/guide.md, "Torch without CUDA").
$(STAMPS)/torch: $(STAMPS)/packages
	@echo "torch and what benchmarks compare with go into .venv: 1.5 GB more, with CUDA several more"
	$(BIN)/pip install --quiet $(TORCH_PIP) torch==2.13.0
	$(BIN)/pip install --quiet -e '.[torch,bench]'
	@touch $@

demo: $(STAMPS)/packages  ## build a trained model, run it on a real input, print answer and timing
	$(BIN)/python examples/quickstart/demo.py

demo-lora: setup  ## train LoRA adapters with PEFT, fold, swap, batch them, print what each answers
	$(BIN)/python examples/lora/demo.py

test: setup  ## the fast tests
	$(BIN)/python -m pytest -n $(JOBS) -q

test-all: setup  ## every test, those marked slow too
	$(BIN)/python -m pytest -n $(JOBS) -q -m ""

lint: $(STAMPS)/packages  ## ruff, mypy, import-linter
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(STAMPS)/packages  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

golden: $(STAMPS)/packages  ## rewrite the tests' expectations; review the diff
	CUVILC_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -n $(JOBS) -q -k golden

conformance: $(STAMPS)/packages  ## every case of ONNX's suite, onnxruntime beside; writes docs/conformance.md
	$(BIN)/python -m tests.conformance --jobs $(JOBS)

fuzz: $(STAMPS)/packages  ## an hour of hostile models and of random operators
	$(BIN)/python -m tests.fuzz --jobs $(JOBS) --seconds 2400
	$(BIN)/python -m tests.properties --seconds 1200

bench: setup  ## side by side with onnxruntime, OpenVINO and torch
	$(BIN)/python benchmarks/compare.py

wheels: $(STAMPS)/packages  ## both wheels, into dist/
	rm -rf build/lib runtime/build
	$(BIN)/pip wheel --quiet --no-deps -w dist ./runtime .

clean:  ## everything that is made
	rm -rf .venv build dist runtime/build *.egg-info runtime/*.egg-info .pytest_cache .mypy_cache \
	  .ruff_cache .hypothesis .import_linter_cache
