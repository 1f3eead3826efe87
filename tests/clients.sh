#!/usr/bin/env bash
# Clients that people use against simulated engines behind the gateway: OpenAI, Anthropic, LangChain, LiteLLM, AI SDK, Gradio's chat page, Claude Code.
# PD_PROXY names the program (default: target/release/pd-proxy). Arguments: which clients; all, when left out.
# TWO_MODELS=1: the gateway serves two fleets with a model each; TWO_MODELS=alias: and the name that clients ask for is an alias.
# Exit code 0: all is well, 1: a fault, 77: no package index is in reach for one of them (the others were tried).
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tests/clients/run.py "$@"
