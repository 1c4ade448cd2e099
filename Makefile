# Everything that is derived goes to .build and .venv. `make` alone prints the targets.

PYTHON ?= python3.11

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
GENERATED := .build/proto
PB := mirrorlog/pb
# The picture and the peers' clients are an extra of their own; nothing is fetched when they are there.
BENCH_CLIENTS = $(BIN)/python -c 'import confluent_kafka, matplotlib, nats, pika, redis' 2>/dev/null || \
  $(BIN)/python -m pip install --disable-pip-version-check --quiet --editable ".[bench]"
PROTOS = $(sort $(wildcard proto/mirrorlog/*/*.proto))

export MIRRORLOG_JARS ?= $(CURDIR)/.build/jars
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.build/hypothesis
# Without Python's caches each node that a test starts compiles the package, and each test process all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv docs lock audit jars proto check kit format test test-long test-again test-pythons torture chaos attack sim fuzz fuzz-nodes outside demo demo-keep bench bench-peers bench-spark compare-rabbitmq clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(INSTALLED) ## create .venv with everything that work on the project needs

$(INSTALLED): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is needed: install Python 3.11 (for Debian:" \
	  "apt-get install python3.11-venv) or name another one with make PYTHON=..." >&2; exit 1; }
	@echo "installing into $(VENV); the first time takes minutes, pyspark alone is 450 MB"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# What is locked already stays as it is, where it fits; without the file all is chosen anew. The second input is what
# builds the package itself.
lock: ## choose the versions of all dependencies, and write requirements.lock with their hashes
	@$(PYTHON) -m venv .build/lock && .build/lock/bin/python -m pip install --disable-pip-version-check --quiet uv
	@printf 'hatchling>=1.27,<2\neditables\n' > .build/lock/build.in
	@.build/lock/bin/uv pip compile pyproject.toml .build/lock/build.in --quiet --extra dev --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file requirements.lock
	@sed -i '1i # Made by `make lock`: what .[dev] needs and what builds it, each file by its hash. Python 3.11.' requirements.lock

# Advisories change by the day, so what is found is told and ends nothing; nor does a database that is not reached.
audit: ## look the locked dependencies up in the database of known vulnerabilities
	@.ci/audit


jars: venv ## fetch the Delta jars that Spark loads
	@$(BIN)/python -m mirrorlog.spark.jars --dir "$(MIRRORLOG_JARS)"

# The modules are generated as mirrorlog.v1, the name that the .proto files have in every language, and moved to
# mirrorlog.pb.v1: a second top-level mirrorlog would clash with the package. Only the lines that name Python
# modules change; the descriptors and the services keep the name mirrorlog.v1.
proto: venv ## generate mirrorlog/pb from proto/; the result is committed
	@test -n "$(PROTOS)" || { echo "error: no proto/mirrorlog/*/*.proto" >&2; exit 1; }
	@rm -rf $(GENERATED) && mkdir -p $(GENERATED)
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(GENERATED) --pyi_out=$(GENERATED) \
	  --grpc_python_out=$(GENERATED) $(PROTOS)
	@find $(GENERATED) -name '*_pb2*' -exec sed -i -E \
	  -e 's/^(from|import) mirrorlog\.(v[0-9]+)/\1 mirrorlog.pb.\2/' \
	  -e "s/, 'mirrorlog\.(v[0-9]+\.[a-z0-9_]+_pb2)', /, 'mirrorlog.pb.\1', /" {} +
	@for package in $(GENERATED)/mirrorlog $(GENERATED)/mirrorlog/*/; do \
	  echo '"""Generated from proto/ by `make proto`: not to be edited."""' > $$package/__init__.py; done
	@rm -rf $(PB) && mv $(GENERATED)/mirrorlog $(PB)
	@find $(PB) -name '*.py' | sort

docs: venv ## make a site of docs/ in .build/site, with what the reference has of the code
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs .build/site && echo "open .build/site/index.html"

check: venv ## formatting, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py

kit: ## build and check what stands in packaging/, as far as the tools are there; KIT=light builds nothing
	@packaging/check $(or $(KIT),all)

format: venv ## format the sources and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Many tests wait for nodes more than they compute, so there is one process more than a small machine has cores.
WORKERS ?= 3
# In the order of their names: with the files of few tests last, which are the slow ones, one process has the end alone.
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: venv jars ## the proof: every promise in its short form, on real nodes and with real Spark; WORKERS=3
	$(PYTEST) -m "not long and not slow"

test-long: venv jars ## the rest: longer storms, more deaths, the whole of the landing
	$(PYTEST) -m "long and not slow"

test-again: venv jars ## what failed in the last runs, one at a time
	$(BIN)/pytest -m "not slow" --last-failed --last-failed-no-failures none

test-pythons: venv ## the package on Python 3.12 and 3.13, as far as this machine has them: imports, pure parts, a node
	@BIN=$(BIN) .ci/pythons

# Both go on where the last run stopped and add up in .build: `make torture ROUNDS=50`, as often as wanted.
torture: venv ## kill -9, stop and pause real nodes under load; ROUNDS=100, SEED, FLUSH=memory|disk
	$(BIN)/python -m tests.process.torture --rounds $(or $(ROUNDS),100) $(if $(SEED),--seed $(SEED)) \
	  $(if $(FLUSH),--flush $(FLUSH))

chaos: venv ## real nodes and networks fail under steady publishing; ROUNDS=48, SEED, ONLY=kill-master,…, TRAFFIC=publish|queue|both, OUT=FILE
	$(BIN)/python -m tests.process.chaos --rounds $(or $(ROUNDS),48) $(if $(SEED),--seed $(SEED)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(TRAFFIC),--traffic $(TRAFFIC)) $(if $(OUT),--out $(OUT))

attack: venv ## strangers, floods and garbage against real nodes, beside a bystander; SECONDS=10 each, ONLY=pings,…, SEED, OUT=FILE
	$(BIN)/python -m tests.attacks --seconds $(or $(SECONDS),10) $(if $(SEED),--seed $(SEED)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

sim: venv ## whole clusters in simulated storms: SEED, N=200, KIND, PLAN=file; goes on where it stopped
	$(BIN)/python -m sim.cluster_main $(if $(PLAN),--plan $(PLAN),--n $(or $(N),200)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(KIND),--kind "$(KIND)")

fuzz: venv ## fuzz the parsers, guided by coverage; SECONDS=60 for each, SEED
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
	  $(BIN)/python -m pip install --disable-pip-version-check --editable ".[fuzz]"
	$(BIN)/python -m tests.fuzz.harness --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

fuzz-nodes: venv ## fuzz real nodes' ports, and what clients and nodes say, round after round; SECONDS=600 in all, SEED, ONLY=middle_nodes,…
	$(BIN)/python -m tests.attacks.rounds --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) \
	  $(if $(ONLY),--only $(ONLY))

outside: venv ## suites of RabbitMQ's clients, unchanged, against nodes' AMQP doors; ONLY=amqpstorm, kombu or amqp
	$(BIN)/python -m tests.outside.suites $(if $(ONLY),--only $(ONLY))

demo: venv jars ## the story from the first message to the Delta table
	$(BIN)/python -m demo.main_job

demo-keep: venv jars ## the same, and leave the nodes and the table for a look
	$(BIN)/python -m demo.main_job --keep

# BENCH=--quick, BENCH="--only 'W2 3 copies' --rounds 5", BENCH=--resume: see python -m bench --help.
bench: venv ## measure mirrorlog and the machine's limits, three rounds; writes bench/results/latest.json and .png
	@$(BENCH_CLIENTS)
	$(BIN)/python -m bench $(BENCH)

bench-peers: venv ## fetch Kafka, NATS, RabbitMQ, RocketMQ and Redis, and measure them beside mirrorlog
	@$(BENCH_CLIENTS)
	@$(BIN)/python -m bench.peers.install || echo "going on without those" >&2
	$(BIN)/python -m bench --peers --out bench/results/peers.json $(BENCH)

# COMPARE="--only migration --rounds 1", COMPARE=--json: see python -m bench.compare --help. Not in CI: it needs RabbitMQ.
compare-rabbitmq: venv ## put RabbitMQ's mirrored queues and mirrorlog through the same stories, side by side
	@$(BENCH_CLIENTS)
	@[ -d /usr/lib/rabbitmq ] || $(BIN)/python -m bench.peers.install rabbitmq
	@$(BIN)/python -m bench.compare $(COMPARE)

# SPARK_BENCH="--rounds 3 --only noop": see python -m bench.spark --help.
bench-spark: venv jars ## measure reading and landing beside Parquet, delta-rs and Kafka's source, in one run
	@$(BENCH_CLIENTS)
	@$(BIN)/python -m bench.peers.install kafka spark-kafka || echo "going on without Kafka" >&2
	$(BIN)/python -m bench.spark $(SPARK_BENCH)

clean: ## remove .build and Python's caches; .venv stays
	rm -rf .build
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
