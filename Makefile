# make run: set up and serve on this machine.  make test: set up, check and test on all three databases.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: run test check bench clean

# honcho gives each process a PORT of its own; the links in texts need the one of the web process.
run: $(VENV)/.run .env
	@from_file() { sed -n "s/^$$1=//p" .env | tail -n 1; }; \
	export PORT=$${PORT:-$$(from_file PORT)}; PORT=$${PORT:-8000}; \
	export PUBLIC_BASE_URL=$${PUBLIC_BASE_URL:-$$(from_file PUBLIC_BASE_URL)}; \
	PUBLIC_BASE_URL=$${PUBLIC_BASE_URL:-http://localhost:$$PORT}; \
	export CARRIER_SIMULATOR_PORT=$${CARRIER_SIMULATOR_PORT:-$$($(BIN)/python -m simulator.ports $$((PORT + 1)))}; \
	export CARRIER_SIMULATOR_URL=$${CARRIER_SIMULATOR_URL:-http://localhost:$$CARRIER_SIMULATOR_PORT}; \
	$(BIN)/python manage.py migrate --verbosity 0 && \
	$(BIN)/python manage.py seed_demo && \
	{ $(BIN)/honcho -f Procfile.dev start --port $$PORT || [ $$? = 130 ]; }

test: check
	$(BIN)/python -m testing.run_suite

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	SECRET_KEY=the-type-checker-reads-the-settings $(BIN)/mypy

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
