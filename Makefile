# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.
# Nothing is installed outside .venv and the folder itself; a second run takes seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MIN_FREE_MB := 4000
NATIVE := $(shell find csrc -type f) CMakeLists.txt pyproject.toml
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format bench docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       train a small model on real text (about 3 minutes), write runs/demo/report.html"
	@echo "make test       run the test suite"
	@echo "make test-slow  run the slow tests too"
	@echo "make check      lint, format, types, layers"
	@echo "make format     apply the formatters"
	@echo "make bench      the benchmark table (needs a text file: CORPUS=path)"
	@echo "make docs       build the documentation site"
	@echo "make clean      remove .venv, build and caches (runs/ is kept)"

demo: runs/demo/report.html
	@$(BIN)/lmworks report runs/demo --show

runs/demo/report.html: recipes/tiny_cpu.yaml $(wildcard examples/text/*.txt) | $(VENV)/.demo
	@$(BIN)/lmworks train recipes/tiny_cpu.yaml --run runs/demo --overwrite

test: $(VENV)/.test
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.test
	@$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $$(find csrc -name '*.cpp' -o -name '*.h')
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $$(find csrc -name '*.cpp' -o -name '*.h')

bench: $(VENV)/.test
	@bash benchmarks/run.sh "$(CORPUS)" "$(MULTILINGUAL)" "$(RANKS)"

docs: $(VENV)/.dev
	@$(BIN)/zensical build

clean:
	rm -rf $(VENV) build site .pytest_cache .mypy_cache .ruff_cache

# ---- set-up: one stamp per step, so that nothing is done twice ----

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $$($(PYTHON) --version 2>&1) found; lmworks needs Python 3.11 or newer. Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || \
	  { echo "error: no C++ compiler found. Install one (Debian/Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or set CXX."; exit 1; }
	@free=$$(df -Pm . | awk 'NR==2 {print $$4}'); [ "$$free" -ge $(MIN_FREE_MB) ] || \
	  { echo "error: $$free MB free on this disk; the set-up needs $(MIN_FREE_MB) MB."; exit 1; }
	@echo "creating $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { echo "error: could not make a virtual environment (Debian/Ubuntu: apt install python3-venv)."; rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.requirements-%: requirements/%.txt | $(VENV)/.created
	@echo "installing $<"
	@$(BIN)/pip install -q --disable-pip-version-check -r $<
	@touch $@

$(VENV)/.requirements-test: $(VENV)/.requirements-demo
$(VENV)/.requirements-dev: $(VENV)/.requirements-test

$(VENV)/.demo: $(VENV)/.requirements-demo $(NATIVE)
	@echo "building the native core"
	@$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e . || \
	  { echo "error: the native core did not build; the compiler's message is above."; exit 1; }
	@touch $@

$(VENV)/.test: $(VENV)/.demo $(VENV)/.requirements-test
	@touch $@

$(VENV)/.dev: $(VENV)/.test $(VENV)/.requirements-dev
	@touch $@
