# An index of what can be run: `just`, then a name. Each script says in its first lines what it needs; exit status 77 means that
# something can't be had here and nothing was tried. Scripts before a gateway take PD_PROXY, a program that is built.

# Lists the recipes
default:
    @just --list --unsorted

# --- every day ---

# Looks for errors in all targets
check:
    cargo check --locked --all-targets --all-features

# Formats the code
fmt:
    cargo fmt

# Lints, as the gate asks for them
lint:
    cargo clippy --locked --all-targets --all-features -- -D warnings

# Everything that cargo tests
test:
    cargo test --locked --all-features

# Tests beside the code whose path has this in it
test-lib FILTER:
    cargo test --locked --lib -- {{ FILTER }}

# Tests at the wire whose path has this in it
test-it FILTER:
    cargo test --locked --all-features --test it -- {{ FILTER }}

# Each test in a process of its own
nextest *ARGS:
    cargo nextest run --locked {{ ARGS }}

# Simulated engines and a gateway before them, at port 8000
demo *ARGS:
    cargo run --release --locked -- demo {{ ARGS }}

# Writes the pages that are made from the program anew
reference:
    cargo run --locked -- generate reference > docs/configuration.md
    for page in cli http errors log; do cargo run --locked -- generate reference $page > docs/reference/$page.md; done

# --- continuous integration ---

# `just ci` is the gate before a merge, `just ci full` what runs nightly and before a release
ci HALF="run":
    .ci/{{ HALF }}

# --- before a gateway, with simulated engines ---

# The README's first promise: the demo
demo-works:
    tests/demo.sh

# Commands, configurations, messages and names in the documents
docs *ARGS:
    tests/docs.sh {{ ARGS }}

# The documents as a book, by mdBook, with every link of it checked
book:
    tests/book.sh

# The official OpenAI client
openai-client:
    tests/openai_client.sh

# Clients that people use: OpenAI, Anthropic, LangChain, LiteLLM, AI SDK, Gradio, Claude Code
clients *ARGS:
    tests/clients.sh {{ ARGS }}

# Engines that are killed under load
kill:
    tests/kill.sh

# The gateway replaced under load, without a refused connection
replace *ARGS:
    tests/replace.sh {{ ARGS }}

# Latency of one fleet with and without faults in another one, in pairs
fleets-apart *ARGS:
    tests/fleets_apart.py {{ ARGS }}

# Gateways that share a fleet through a real Redis or Valkey; `just replicas 4 faults`, stopped, cut, failover, cost
replicas *ARGS:
    tests/share/replicas.py {{ ARGS }}

# The budget of one key over four gateways, and its requests in flight
replicas-limits:
    tests/share/budgets.py
    tests/share/places.py

# An hour of mixed load with faults; `just soak --seconds 600` is shorter
soak *ARGS:
    tests/soak.sh {{ ARGS }}

# Ten thousand slow streams at once
streams:
    tests/streams.sh

# The status page in Chromium
status *ARGS:
    tests/status.sh {{ ARGS }}

# The OpenAPI document, judged by openapi-spec-validator, and answers by its schemas
openapi:
    tests/openapi.sh

# Spans, decoded by OpenTelemetry's own package
trace:
    tests/trace.sh

# The Grafana board and the alerts on a real Prometheus
board:
    tests/board.sh

# The recipes for nginx and HAProxy, by the real ones
balancers:
    tests/balancers.sh

# The alerts on a real Prometheus, before fleets that are well and fleets in trouble
alerts:
    tests/alerts.sh

# The gauges for autoscalers on a real Prometheus while the load changes; `just scaling --plot docs/images/scaling.svg`
scaling *ARGS:
    tests/scaling.sh {{ ARGS }}

# Random faults by seed, for so many seeds
chaos RUNS="200":
    CHAOS_RUNS={{ RUNS }} cargo test --locked --test it -- chaos

# Hostile bytes: one fuzz target for so many seconds; needs cargo-fuzz and a nightly toolchain
fuzz TARGET SECONDS="60":
    cargo +nightly fuzz run --fuzz-dir tests/fuzz {{ TARGET }} -- -max_total_time={{ SECONDS }} -timeout=10 -rss_limit_mb=2048

# --- packaging ---

# The Kubernetes manifests and the systemd unit
deploy:
    tests/deploy.sh

# The demo with Prometheus and a board, by Compose
compose:
    tests/compose.sh

# The Helm chart
helm:
    tests/helm.sh

# The Python wheel
wheel:
    tests/wheel.sh

# The Python wheel for aarch64, under qemu
wheel-aarch64:
    tests/wheel_aarch64.sh

# The container image, without Docker
image:
    tests/image.sh

# What a release hands out, in dist/VERSION; `just release --dry-run` makes nothing
release *ARGS:
    config/release.sh {{ ARGS }}

# The recipe of a release, with a ready program
release-works:
    tests/release.sh

# --- real services and engines ---

# Mooncake masters of several versions
real-mooncake *VERSIONS:
    tests/real/mooncake.sh {{ VERSIONS }}

# Two Mooncake masters with etcd, the leader killed
real-mooncake-ha *VERSION:
    tests/real/mooncake_ha.sh {{ VERSION }}

# MemCache's meta service
real-memcache:
    tests/real/memcache.sh

# Two vLLM engines that are sent prompts as tokens
real-send-ids:
    tests/real/send_ids.sh

# Prompts of chats, Messages and Responses against vLLM's render server
real-prompts:
    tests/real/prompts.sh

# Tokenizers of every form against the libraries that made the forms
real-tokenizers:
    tests/real/tokenizer_forms.sh

# Chats that vLLM renders by code, token by token against vLLM's own modules
real-chats *RELEASES:
    tests/real/chat_forms.sh {{ RELEASES }}

# A vLLM engine with a tokenizer of Kimi's form, and one whose chats are code
real-models *FORMS:
    tests/real/model_forms.sh {{ FORMS }}

# EMS's lookup server, LMCache's controller and coordinator
real-ems:
    tests/real/ems.sh

# A kube-apiserver and etcd
real-kubernetes *ARGS:
    tests/real/kubernetes.sh {{ ARGS }}

# Two vLLM engines with real KV transfer
real-vllm *CONNECTORS:
    tests/real/run.sh {{ CONNECTORS }}

# The same for several releases of vLLM: the table of docs/connectors.md
real-matrix *RELEASES:
    tests/real/matrix.sh {{ RELEASES }}

# Block hashes against the KV events of a vLLM engine
real-kv-events *ARGS:
    tests/real/kv_events.sh {{ ARGS }}

# Blocks before images against the KV events of a vLLM engine for images
real-image-blocks *ARGS:
    tests/real/image_blocks.sh {{ ARGS }}

# Keys that two vLLM engines write into a Mooncake store
real-store-keys:
    tests/real/store_keys.sh

# A configuration that `pd-proxy init` writes for vLLM engines with a Mooncake store, and with NIXL
real-init:
    tests/real/init.sh

# Two fleets of vLLM engines behind one gateway, with adapters that only some have
real-fleets:
    tests/real/fleets.sh

# vLLM engines and a Mooncake store together
real-pool *ARGS:
    tests/real/pool.sh {{ ARGS }}

# The second turn of a conversation, with vLLM engines and a store
real-turns:
    tests/real/turns.sh

# Conversations whose later turns a vLLM decoder computes alone
real-append:
    tests/real/append.sh

# Priorities of clients' keys in a vLLM decoder
real-priority:
    tests/real/priority.sh

# A vLLM decoder put to sleep, paused and woken through the gateway
real-asleep:
    tests/real/asleep.sh

# A vLLM decoder killed under streams that go on
real-resume:
    tests/real/resume.sh

# What moved in newer releases of engines and pools of what is relied on here; `-- --help` has its options
drift *ARGS:
    tests/real/drift.py {{ ARGS }}

# --- speed ---

# The whole way: CPU time per request and chunk, memory per stream; `-- --help` has its options
bench-e2e *ARGS:
    cargo bench --profile dist --bench e2e {{ ARGS }}

# One of the pieces: codec, hash, pool, prompt, route
bench NAME:
    cargo bench --profile dist --bench {{ NAME }}

# Instructions of requests and pieces, compared with benches/instructions.tsv
instructions *ARGS:
    tests/instructions.sh {{ ARGS }}

# The build that is handed out; with --pgo guided by what runs how often
dist *ARGS:
    benches/pgo/dist.sh {{ ARGS }}

# What cargo users expect of a clone: no bash, wrappers, cargo install
build-ways *ARGS:
    tests/build.sh {{ ARGS }}
