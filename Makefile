# make demo     a conversation through the command line, offline
# make test     all tests, with coverage floors
# make soak     stores killed at every append and at random, for as long as it takes; SOAK=... gives it options
# make check    style, structured concurrency lints, types; make lint or make types: a part of it
# make bench    measures beside other frameworks and writes bench/RESULTS.md; ONLY=W4,W7 some, QUICK=1 a trial, PROFILE=1 a profile
# Each makes .venv first, with any Python 3.11+ that is found; PYTHON=... names one.

VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test soak check lint types format bench clean

demo: $(VENV)/.installed
	BIN=$(BIN) sh examples/demo.sh

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=

soak: $(VENV)/.installed
	$(BIN)/python -m tests.soak $(SOAK)

check: $(VENV)/.installed
	@$(MAKE) -j2 lint types

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/flake8 roder_trio examples
	$(BIN)/flake8 --config tests/.flake8 tests

types: $(VENV)/.installed
	$(BIN)/mypy
	$(BIN)/mypy examples

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench/.venv/.installed
	bench/.venv/bin/python -m $(if $(PROFILE),bench.stages,bench.run) $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

bench/.venv/.installed: pyproject.toml bench/requirements.txt $(VENV)/.installed
	[ -x bench/.venv/bin/python ] || $(BIN)/python -m venv bench/.venv
	bench/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt -e .
	touch $@

$(VENV)/.installed: pyproject.toml
	@set -e; \
	usable='import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; \
	for python in $(PYTHON) python3 python3.11 python3.12 python3.13 python3.14; do \
	  if $$python -c "$$usable" 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "make: no Python 3.11 or newer with venv was found; name one with PYTHON=..." >&2; exit 1; fi; \
	[ -x $(BIN)/python ] || "$$found" -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli,test,lint]'; \
	touch $@

clean:
	rm -rf $(VENV) bench/.venv bench/.results .demo .mypy_cache .ruff_cache .pytest_cache .coverage
