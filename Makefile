PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup serve test test-fast lint clean

setup: $(VENV)/.ready  ## create .venv with everything that pyproject.toml names

$(VENV)/.ready: pyproject.toml
	@echo "Setting up $(VENV): about 500 MB, a few minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[hub,dev]'
	touch $@

serve: setup  ## fetch the default model if need be and serve it on http://127.0.0.1:8000
	$(BIN)/kvledger pull smollm2
	$(BIN)/kvledger serve --model smollm2 --port $(PORT)

test: setup  ## every test, the slow ones last
	$(BIN)/kvledger pull smollm2
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

test-fast: setup  ## the tests that take under two minutes together
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

lint: setup  ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist
