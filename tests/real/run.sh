#!/usr/bin/env bash
# Two real vLLM CPU engines with real KV transfer, the gateway in front, and a plain engine to compare with.
#
#   tests/real/run.sh [CONNECTOR…]      default: nixl nixl-bidir nixl-push mooncake mooncake-store multi
#
# Once with the dialect that the engines are found to speak, and once with it configured. PD_PROXY names a program that was built
# before. Needs tests/real/rigs/vllm (its setup.sh installs 6.6 GB once), 8 GB of memory and about ten minutes. Not part of
# .ci/run. Exit status 0: every answer equals the plain engine's, and the decoder's own metrics show that its KV came
# by transfer.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
rig=$root/tests/real/rigs/vllm
. "$rig/env.sh"
. "$root/tests/real/connectors.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked
proxy=${PD_PROXY:-$root/target/release/pd-proxy}
trap '"$rig/stop.sh" >/dev/null' EXIT
gateway=http://127.0.0.1:9000 prefill=http://127.0.0.1:$P_PORT decode=http://127.0.0.1:$D_PORT ref=http://127.0.0.1:$REF_PORT
cases=${CASES:-52}

"$rig/start_pair.sh" ref

for connector in "${@:-nixl nixl-bidir nixl-push mooncake mooncake-store multi}"; do for connector in $connector; do
  DEV_MODE=1 "$rig/start_pair.sh" "$connector"
  moved_before=0 computed_before=0
  for name in auto "$(dialect_of "$connector")"; do
    echo "== $connector, dialect.name = $name"
    PROXY_EXTRA="--set dialect.name=$name $(flags_of "$connector")" PD_PROXY=$proxy "$rig/start_proxy.sh" pd-proxy 9000
    grep -h "dialect: " "$LOGS/proxy-pd-proxy.log" || true
    out=$("$VENV/bin/python" "$rig/check_equal.py" --url "$gateway" --ref "$ref" --decode "$decode" --token-ids)
    echo "$out"
    grep -q "^equal $cases, different 0, failed 0$" <<<"$out"
    moved=$(($(by_source "$decode" external_kv_transfer) - moved_before)) computed=$(($(by_source "$decode" local_compute) - computed_before))
    echo "decoder: $moved prompt tokens by transfer, $computed computed"
    case $connector in
      # Whole blocks travel through a store; the rest of each prompt, less than a block, is computed.
      mooncake-store) [ "$moved" -gt "$((computed * 3))" ];;
      *) [ "$moved" -gt 0 ] && [ "$computed" -eq 0 ];;
    esac
    if [ "$connector $name" = "nixl auto" ]; then
      "$VENV/bin/python" tests/real/more.py "$gateway" "$prefill" "$decode" "$ref"
    fi
    if [ "$connector" = nixl-bidir ]; then
      "$VENV/bin/python" tests/real/back.py "$gateway" "$prefill" "$ref"
    fi
    if [ "$connector" = mooncake-store ]; then
      curl -sf "$gateway/metrics" | grep '^pd_proxy_pool_wait[s_].*\(total\|_sum\|_count\)'
    fi
    moved_before=$(by_source "$decode" external_kv_transfer) computed_before=$(by_source "$decode" local_compute)
    reset_caches "$prefill" "$decode"
    "$rig/stop.sh" proxy
  done
  "$rig/stop.sh" prefill decode
done; done
echo "all equal"
