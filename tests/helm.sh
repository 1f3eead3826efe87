#!/usr/bin/env bash
# The Helm chart: rendered in many ways, by Kubernetes' schemas, against the manifests of config/kubernetes, and by a gateway that runs by it.
# More in helm.py; a minute.
# PD_PROXY names the program (default: target/release/pd-proxy). helm is not in package indexes: tests/helm/render.go stands for it, made of what
# Debian has of helm's parts. Exit status 77: they can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
program=${PD_PROXY:-target/release/pd-proxy}
[[ -x $program ]] || { echo "helm: $program is not there: build it, or set PD_PROXY" >&2; exit 1; }
command -v apt-get >/dev/null || not_run "there is no apt-get to fetch Go and sprig with"

debian openssl golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev
. tests/kubernetes_site.sh
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE="${GOCACHE:-$built/cache}" GOFLAGS= go build -o "$built/render" tests/helm/render.go
# Not with exec: the trap stays.
env -u HTTP_PROXY -u http_proxy "$python" tests/helm.py --program "$program" --renderer "$built/render"
echo "helm: ok"
