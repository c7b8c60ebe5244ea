# make quickstart   a first report, from nothing;  make lab   JupyterLab
# make check  what needs no Jupyter kernel, browser or training, and takes less than 0.7 s each:
#   under three minutes on 2 cores; make slow lists anew what takes longer
# make test   all checks
# make soak   200 runs while kernels, workers and sweeps are killed at random, and commands while
#   they write; 500 forks of a process with a framework; other random values; 10,000 damaged params
#   files, 10,000 records, 1,000 traces
# make bench  what mptexp itself costs, and whether it finds planted causes; with FOLDER=a folder of
#             images also its input pipeline
# make wheel-test  a wheel in fresh environments elsewhere; PYTHONS="python3.12 python3.13" names them
# make docs        the documentation as a site, in build/site
# make reference   docs/params.md and params/schema.json, after a parameter has changed
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder

# Hundreds of processes of the tests import the same modules: each is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart check test slow lint lab wheel-test bench soak docs reference

quickstart: .venv/installed
	$(BIN)/mptexp run params/quickstart.yaml

# Of drawn values the first fifteen; `make test` has them all.
check: lint
	$(PYTEST) --numprocesses auto --maxprocesses 4 --hypothesis-profile quick \
		-m "not kernel and not slow and not bench and not soak"

slow: .venv/installed-dev
	$(PYTEST) --numprocesses auto --maxprocesses 4 --hypothesis-profile quick \
		-m "not kernel and not bench and not soak" --junitxml=build/tests.xml
	$(BIN)/python tests/slow_tests.py build/tests.xml

# Four processes, because those that wait for processes of their own leave cores idle.
test: lint
	$(PYTEST) --numprocesses 4

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lab: .venv/installed-lab
	JUPYTER_CONFIG_PATH="$(CURDIR)/notebooks/.jupyter:$$JUPYTER_CONFIG_PATH" \
		$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/start_here.py

wheel-test: .venv/installed-dev
	$(BIN)/python tests/wheel.py $(PYTHONS)

bench: .venv/installed-dev
	$(BIN)/python benchmarks/interval_coverage.py
	$(BIN)/python benchmarks/false_blame.py
	$(BIN)/python benchmarks/measuring_overhead.py
	$(BIN)/python benchmarks/framework_import.py
	$(BIN)/python benchmarks/sweep_overhead.py
	$(BIN)/python benchmarks/scale.py --runs 2000
	$(BIN)/python benchmarks/ray_overhead.py
	$(BIN)/pytest -m bench
	$(if $(FOLDER),$(BIN)/python benchmarks/input_pipeline.py $(FOLDER))

docs: .venv/installed-dev
	$(BIN)/python docs/site.py

reference: .venv/installed
	$(BIN)/python docs/reference.py

soak: .venv/installed-dev
	$(BIN)/pytest -m soak
	$(BIN)/pytest -m hypothesis --hypothesis-profile others --ignore tests/system/test_fuzz.py
	MPTEXP_FUZZ=long $(BIN)/pytest tests/system/test_fuzz.py

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else "mptexp needs Python 3.11, 3.12 or 3.13; this is %d.%d. Name another: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,profile,ray,jax,text,mlflow,tensorboard,docs]'
	touch .venv/installed $@

.venv/installed-lab: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[lab]'
	touch $@
