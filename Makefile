# Versions that pass together are in constraints.txt; `make setup PIP_FLAGS=…` adds pip's own options,
# such as an index that serves CPU builds of torch.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS ?=
STAMP := $(VENV)/.installed

.PHONY: demo test check setup test-slow test-latest wheel docs

demo: $(STAMP)-lm  ## the main job on the embedded default: train, compare, report
	$(BIN)/depthscale compare --preset demo --out runs/demo

test: $(STAMP)-dev  ## unit, property, golden, parity, CLI and browser tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP)-dev  ## ruff, mypy, import-linter
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	cd src/depthscale && ../../$(BIN)/mypy --strict --config-file ../../pyproject.toml \
		errors.py plan.py residual.py budget runs laws
	$(BIN)/lint-imports

setup: $(STAMP)-dev  ## a virtual environment with everything the tests need

test-slow: $(STAMP)-dev  ## the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

test-latest:  ## the tests against the newest transformers, in an environment of their own
	$(PYTHON) -m venv .venv-latest
	grep -v '^transformers==' constraints.txt > .venv-latest/constraints.txt
	.venv-latest/bin/pip install $(PIP_FLAGS) -q -c .venv-latest/constraints.txt -e '.[dev]' --upgrade transformers
	OMP_NUM_THREADS=1 .venv-latest/bin/python -m pytest -n 2 --dist worksteal

wheel: $(STAMP)-dev  ## build the wheel and try it in a clean environment
	$(BIN)/python -m build --wheel --outdir dist
	rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install $(PIP_FLAGS) -q -c constraints.txt dist/*.whl
	cd /tmp && $(CURDIR)/.venv-wheel/bin/python -c "import depthscale; print(depthscale.__version__)"
	cd /tmp && $(CURDIR)/.venv-wheel/bin/depthscale --help > /dev/null

docs: $(STAMP)-dev  ## write the help texts of every verb into docs/cli.md
	$(BIN)/typer depthscale.cli.main utils docs --name depthscale --output docs/cli.md

$(STAMP)-%: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), quietly: minutes, and gigabytes where torch is a CUDA build"
	$(BIN)/pip install $(PIP_FLAGS) -q -c constraints.txt -e '.[$*]'
	touch $@
