# Everything happens in .venv, which `make setup` makes with PYTHON (3.10 to 3.13).
# Each step leaves a stamp in .venv and is done again only when what it depends on has changed.

PYTHON ?= python3
VENV ?= .venv
TENSORFLOW ?=
PYTEST_ARGS ?=
export CXX
export TENSORFLOW

RUN := $(VENV)/bin/python
BUILT_FROM := $(shell find CMakeLists.txt pyproject.toml cmake ops tools/build_config.py tools/compile_flags.txt \
	tf_epgc/version.py) $(wildcard $(VENV)/lib/python3*/site-packages/tensorflow*.dist-info)

.PHONY: help setup demo test test-fast matrix bazel bazel-setup wheel-check lint format check clean distclean

help:
	@echo "make setup      .venv with TensorFlow, the tools, and this package built and installed (editable)"
	@echo "make demo       setup, then the demo"
	@echo "make test       setup, then all tests;  make test-fast  without the slow ones"
	@echo "make matrix     runs the Keras matrix and writes docs/keras_matrix.md"
	@echo "make bazel      build and test with Bazel"
	@echo "make lint       ruff and clang-format, as a check;  make format  to apply them"
	@echo "make check      lint, wheel-check, test"
	@echo "make clean      removes what was built;  make distclean  .venv too"
	@echo "Variables: PYTHON=python3.12  TENSORFLOW='tensorflow-cpu==2.20.*'  PYTEST_ARGS='-k codec'"

setup: $(VENV)/.built bazel-setup

$(VENV)/.created: tools/check_host.py
	@$(PYTHON) tools/check_host.py
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.requirements: $(VENV)/.created pyproject.toml tools/setup_env.py
	@$(RUN) tools/setup_env.py
	@touch $@

$(VENV)/.built: $(VENV)/.requirements $(BUILT_FROM)
	@echo "==> building and installing tf_epgc"
	@$(RUN) -m pip install -q -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml tools/setup_env.py
	@$(RUN) tools/setup_env.py dev
	@touch $@

demo: setup
	$(RUN) examples/digits_demo.py

test: setup
	$(RUN) -m pytest -q $(PYTEST_ARGS)

test-fast: setup
	$(RUN) -m pytest -q -m "not slow" $(PYTEST_ARGS)

matrix: setup
	$(RUN) -m tests.distributed.keras_matrix_table docs/keras_matrix.md

bazel-setup: $(VENV)/.requirements
	@$(RUN) tools/bazel_setup.py

bazel: setup
	bazel build //...
	bazel test //...

wheel-check: setup
	$(RUN) tools/check_wheel.py

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	git ls-files --cached --others --exclude-standard '*.cc' '*.h' | xargs $(VENV)/bin/clang-format --dry-run -Werror

format: $(VENV)/.dev
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .
	git ls-files --cached --others --exclude-standard '*.cc' '*.h' | xargs $(VENV)/bin/clang-format -i

check: lint wheel-check test

clean:
	rm -rf .build dist $(VENV)/.built
	[ ! -e bazel-out ] || bazel clean

distclean: clean
	rm -rf $(VENV) .bazelrc.user
