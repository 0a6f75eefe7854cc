# Two commands do everything: `make demo` shows the tool, `make test` tests it.
# Both bring their own environment into .venv and reuse it the next time.

# TORCH=2.6.0 asks for another torch than constraints.txt names: it gets an environment of its own.
TORCH ?=
VENV ?= .venv$(if $(TORCH),-torch-$(TORCH))
CONSTRAINTS := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
BIN := $(VENV)/bin
PYTHONS := python3.11 python3.12 python3.13 python3

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test quick test-slow test-busy test-torch test-families test-docs pictures lint docs bench bench-predict lock install install-dev browser clean

help:
	@echo 'make demo    install, profile a small Mask R-CNN on generated images, show tables and report'
	@echo 'make test    install what tests need, run linters, type checker and all tests'
	@echo 'make quick   the part of the tests that needs neither torch nor other processes: under two minutes'
	@echo 'make test-slow   the longest tests; the published figures again, from whole recorded files where there are any'
	@echo 'make test-busy   tests of ranks, clusters, kills and signals, again and again on a busy machine (TIMES=20)'
	@echo 'make test-torch TORCH=2.6.0   quick tests and those that use torch, with that torch in .venv-torch-2.6.0'
	@echo 'make test-families   models of Ultralytics, libreyolo and rfdetr in their own trainers, in .venv-families'
	@echo 'make test-docs   the commands of README and docs as typed, in order; half an hour on two cores'
	@echo 'make pictures   docs/images and the outputs of the example notebook again, from pages made now'
	@echo 'make lint    ruff and mypy alone'
	@echo 'make docs    the documentation as a site, into site/'
	@echo 'make bench   what recording costs, side by side, as ratios'
	@echo 'make bench-predict   errors of prediction on recorded data, each with its target'
	@echo 'make lock    write constraints.txt again for what pyproject.toml asks (UPGRADE=1: newest versions)'
	@echo 'make clean   remove the environment and caches; runs/ and data/ stay'

demo: install
	$(BIN)/detscope train tiny_maskrcnn --steps 20 --level ops --memory
	@echo; echo "the report, one file for your browser: $$(readlink -f runs/latest)/report.html"

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist loadfile

# figures from tables, readers of files, settings and stored runs
QUICK := tests/accuracy tests/analyze tests/config tests/ingest tests/recorded tests/runs $(wildcard tests/test_*.py)
quick: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not processes' $(QUICK)

test-slow: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

test-busy: install-dev
	$(BIN)/python -m bench.busy_suite --times $(or $(TIMES),20)

# what cannot be had of an old torch is skipped, and the reason says of which
WITH_TORCH := tests/record tests/simulated tests/zoo tests/loops tests/machine \
	$(addprefix tests/e2e/,test_train_command.py test_run_command.py test_run_examples.py)
test-torch: $(if $(TORCH),install-dev)
	@[ -n '$(TORCH)' ] || { echo 'error: which torch? hint: make test-torch TORCH=2.6.0' >&2; exit 2; }
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not processes' $(QUICK) $(WITH_TORCH)

# one process at a time: planted sleeps are compared with what was planted
test-families:
	@$(MAKE) --no-print-directory VENV=.venv-families .venv-families/.installed-families
	.venv-families/bin/python -m pytest tests/families

# what needs a GPU or a download says so in its own comment on the page, and is left out by that alone
test-docs: install-dev
	$(BIN)/python -m tools.doc_commands $(PAGES)

NOTEBOOK := $(CURDIR)/examples/look_into_a_run.ipynb
pictures: browser
	$(BIN)/python -m tools.pictures $(NAMES)
	cd "$$(mktemp -d)" && PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=$(CURDIR) python -m tools.notebook $(NOTEBOOK)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install
	$(BIN)/python -m bench

bench-predict: install
	$(BIN)/python -m bench predict predict_latency predict_cpu

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# Some tests look at pages with Chromium. Without one, and without the right to install it, they are
# skipped and say so; `make test` does not fail for lack of a browser.
browser: install-dev
	@$(BIN)/python -c 'import sys; from detscope.machine.programs import find_browser; sys.exit(not find_browser())' \
	|| { echo 'installing chromium, with which tests look at pages' && \
		root=; [ "$$(id -u)" = 0 ] || root='sudo -n'; export DEBIAN_FRONTEND=noninteractive; \
		{ $$root apt-get -qq update && $$root apt-get -qq install -y --no-install-recommends \
			chromium fonts-liberation; } >$(VENV)/browser.log 2>&1; } \
	|| echo 'hint: tests with a browser will be skipped (sudo apt-get install chromium); see $(VENV)/browser.log'

# uv does not read pip's settings: an index or certificate that pip is told to use is handed on.
define SETTINGS_OF_PIP
index="$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null)}"; \
if [ -n "$$index" ] && [ -z "$$UV_DEFAULT_INDEX$$UV_INDEX_URL" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
cert="$${PIP_CERT:-$$($(BIN)/pip config get global.cert 2>/dev/null)}"; \
if [ -n "$$cert" ] && [ -z "$$SSL_CERT_FILE" ]; then export SSL_CERT_FILE="$$cert"; fi
endef

# Everything comes from one index in one resolution, torch and torchvision above all: torchvision's
# operators load only beside the torch build they were made for. Hashes are checked by uv. It compiles
# what it installs, as pip does: else every process compiles torch anew where Python may not write bytecode.
UV_INSTALL = $(SETTINGS_OF_PIP); $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python \
	--constraints $(CONSTRAINTS) --build-constraints constraints.txt

# Left out for another torch: what only follows from its version. torchvision follows too, for each
# of its releases asks for one torch.
ifneq ($(TORCH),)
$(CONSTRAINTS): $(VENV)/.uv constraints.txt
	@awk '/^[^ ]/ {keep = !/^(torch|torchvision|triton|sympy|(nvidia|cuda)-[a-z0-9-]+)==/ || /^nvidia-ml-py==/} keep' \
		constraints.txt > $@
	@echo 'torch==$(TORCH)' >> $@
endif

$(VENV)/.installed: $(VENV)/.uv pyproject.toml $(CONSTRAINTS)
	@echo 'installing detscope (the first time this fetches about 3 GB: torch with CUDA)'
	@$(UV_INSTALL) --editable '.[torch,predict,pictures,tensorboard]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo 'installing what tests need'
	@$(UV_INSTALL) --editable '.[all]' --group dev
	@touch $@

# torch and transformers as everywhere; of the rest these libraries ask for other versions than constraints.txt names
$(VENV)/.installed-families: $(VENV)/.uv pyproject.toml constraints.txt requirements-families.txt
	@echo 'installing the libraries of requirements-families.txt'
	@awk '/^[^ ]/ {keep = /^(torch|torchvision|transformers|triton|numpy|(nvidia|cuda)-[a-z0-9-]+)==/} keep' \
		constraints.txt > $(VENV)/constraints.txt
	@$(SETTINGS_OF_PIP); $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python \
		--constraints $(VENV)/constraints.txt --build-constraints constraints.txt \
		--editable '.[torch,predict,tensorboard]' --group dev --requirements requirements-families.txt
	@touch $@

# The site is made from sources and docstrings as text: it needs neither torch nor the package itself.
$(VENV)/.installed-docs: $(VENV)/.uv pyproject.toml constraints.txt
	@echo 'installing what the site needs'
	@$(UV_INSTALL) --group docs
	@touch $@

# pip installs nothing but uv, at the version and hashes that constraints.txt names.
$(VENV)/.uv: constraints.txt
	@for python in $(PYTHONS); do \
		$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
		python=; \
	done; \
	if [ -z "$$python" ]; then \
		echo 'error: no Python 3.11 or newer found' >&2; \
		echo 'hint: sudo apt install python3.11 python3.11-venv' >&2; exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "error: $$python cannot make virtual environments: its venv module is missing" >&2; \
		echo 'hint: sudo apt install python3-venv' >&2; exit 1; \
	fi; \
	[ -x $(BIN)/pip ] || $$python -m venv $(VENV)
	@awk '/^uv==/ {on = 1} on {print} on && !/\\$$/ {exit}' constraints.txt > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/uv.txt
	@touch $@

# Names, versions and hashes for every platform; no addresses. Run it after changing pyproject.toml.
lock: $(VENV)/.uv
	@$(SETTINGS_OF_PIP); printf '%s\n' uv hatchling editables | $(BIN)/uv pip compile --quiet --universal \
		--python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
		$(if $(UPGRADE),--upgrade) --all-extras --group dev --group docs --output-file constraints.txt pyproject.toml - >/dev/null
	@! grep -nE '://|@ |(^|[ =])/' constraints.txt
	@grep -c '==' constraints.txt | sed 's/$$/ packages pinned in constraints.txt/'

clean:
	rm -rf $(VENV) .venv-torch-* .venv-families .bench-environments dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
