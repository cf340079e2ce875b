# Every command needs Python 3.11 or newer, make and git; the rest is installed into
# .venv from the exact versions in requirements.lock.
#
#   make train           train the quickstart config
#   make test            everything that must hold before a commit
#   make test-slow       tests of whole runs, of several processes and meshes
#   make test-reference  compare with timm and transformers (needs torch)
#   make test-prepare    the tests of preparing data that need Apache Beam
#   make test-onnx       the tests of the export to ONNX (needs jax2onnx)
#   make test-machine    tests that need a GPU, a TPU or a prepared data set
#   make bench           measure speed; the results go into benchmarks/latest.json
#   make bench-peers     measure Flax's layers and timm so (needs torch)
#   make format          let ruff rewrite the files
#   make lock            renew requirements.lock
#   make clean           remove the environments and caches
#
# Another interpreter: make PYTHON=python3.12 test (after make clean).

PYTHON ?= python3
BIN := .venv/bin
REFERENCE_BIN := .venv-reference/bin
PREPARE_BIN := .venv-prepare/bin
ONNX_BIN := .venv-onnx/bin
PIP_INSTALL := -m pip install --quiet --quiet --disable-pip-version-check \
	--constraint requirements.lock
SOURCES := vit_jax configs launch benchmarks tests setup.py

.DELETE_ON_ERROR:
.PHONY: train test test-slow test-reference test-prepare test-onnx test-machine bench bench-peers format lock clean check-python

train: .venv/.train
	$(BIN)/python -m vit_jax.main --config=configs/quickstart.py \
	  --workdir=runs/quickstart

test: .venv/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not reference and not tpu"

test-reference: .venv-reference/.reference
	$(REFERENCE_BIN)/python -m pytest -m "reference"

test-prepare: .venv-prepare/.prepare
	$(PREPARE_BIN)/python -m pytest tests/data/prepare/test_beam.py \
	  tests/data/prepare/test_duplicates.py

test-onnx: .venv-onnx/.onnx
	$(ONNX_BIN)/python -m pytest tests/export/test_onnx.py

# JAX takes the accelerator only if told: make test-machine JAX_PLATFORMS=cuda
test-machine: .venv/.dev
	$(BIN)/python -m pytest -m "tfds or gpu or tpu"

# With the TPU compiler, .venv/bin/pip install 'jax[tpu]', also compiled programs.
bench: .venv/.train
	$(BIN)/python -m vit_jax.benchmark all --output=benchmarks/latest.json

bench-peers: .venv-reference/.reference
	$(REFERENCE_BIN)/python benchmarks/flax_step.py
	$(REFERENCE_BIN)/python benchmarks/timm_step.py --model=vit_small_patch16_224
	$(REFERENCE_BIN)/python benchmarks/timm_step.py \
	  --model=swin_tiny_patch4_window7_224

format: .venv/.dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# The newest releases that setup.py allows, for each Python version that we support.
lock: .venv/.dev
	{ echo "# Exact versions, used as pip constraints. Made by: make lock"; \
	  $(BIN)/uv pip compile setup.py --extra dev --universal --upgrade --quiet \
	    --python-version 3.11 --fork-strategy requires-python \
	    --no-header --no-annotate; } > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:
	rm -rf .venv .venv-reference .venv-prepare .venv-onnx .pytest_cache .ruff_cache build *.egg-info

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: vit_jax needs Python 3.11 or newer, and $(PYTHON) is" \
	    "$$({ $(PYTHON) --version || echo not there; } 2>&1 | tail -n 1);" \
	    "name one with: make PYTHON=python3.11 ..." >&2; \
	  exit 1; }

.venv/bin/python .venv-reference/bin/python .venv-prepare/bin/python .venv-onnx/bin/python: | check-python
	$(PYTHON) -m venv $(@:/bin/python=)

.venv/.train: setup.py requirements.lock | .venv/bin/python
	$(BIN)/python $(PIP_INSTALL) --editable .
	touch $@

.venv/.dev: setup.py requirements.lock | .venv/bin/python
	$(BIN)/python $(PIP_INSTALL) --editable ".[dev]"
	touch $@ .venv/.train

.venv-reference/.reference: setup.py requirements.lock | .venv-reference/bin/python
	$(REFERENCE_BIN)/python $(PIP_INSTALL) --editable ".[dev,reference]"
	touch $@

# Without the lock: Beam takes Pillow, protobuf and pyarrow below what is written there.
.venv-prepare/.prepare: setup.py | .venv-prepare/bin/python
	$(PREPARE_BIN)/python -m pip install --quiet --quiet \
	  --disable-pip-version-check --editable ".[dev,prepare]"
	touch $@

# jax2onnx without what it asks for: an older Orbax than ours, which it does not import.
.venv-onnx/.onnx: setup.py requirements.lock | .venv-onnx/bin/python
	$(ONNX_BIN)/python $(PIP_INSTALL) --editable ".[dev,onnx]"
	$(ONNX_BIN)/python $(PIP_INSTALL) --no-deps jax2onnx==0.17.1
	touch $@
