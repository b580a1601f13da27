# make run: set up and serve on this machine.  make test: set up, check and test on all three databases.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: run test check bench clean

run: $(VENV)/.run .env
	@$(BIN)/python manage.py migrate --verbosity 0
	@$(BIN)/python manage.py seed_demo
	@exec $(BIN)/honcho start

test: check
	$(BIN)/python -m testing.run_suite

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) var staticfiles

.env:
	@$(BIN)/python -c "import secrets; print(f'SECRET_KEY={secrets.token_urlsafe(48)}\nDEBUG=on')" > .env

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements.txt requirements-dev.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@ $(VENV)/.run
