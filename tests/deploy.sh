#!/usr/bin/env bash
# The Kubernetes manifests and the systemd unit: by Kubernetes' schemas, against each other, and by a gateway that runs as they say.
# More in deploy.py; half a minute.
# PD_PROXY names the program (default: target/release/pd-proxy), built with --all-features. The schemas are a Python package, kept in $DEPLOY_SITE. Exit status 77:
# it can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
. tests/program.sh

. tests/kubernetes_site.sh
# Not with exec: the trap stays.
env -u HTTP_PROXY -u http_proxy "$python" tests/deploy.py --program "$program"
echo "deploy: ok"
