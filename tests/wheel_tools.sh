# Tools that make a wheel, for wheel.sh and wheel_aarch64.sh to source after fetch.sh; and a folder `work`, which goes at the end.
python3 -c 'import ensurepip, venv' 2>/dev/null || not_run "python3 has no venv with pip"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tools NAME… : those of PyPI, on the path
tools() {
    local -A versions=([maturin]=1.16.0 [ziglang]=0.17.1)
    local name
    venv "${TMPDIR:-/tmp}/pd-proxy-wheel-${versions[maturin]}-${versions[ziglang]}"
    for name; do
        "$pip" show --quiet "$name" 2>/dev/null || fetch reaches_python "$name" \
            "$pip" install --quiet --disable-pip-version-check --retries 1 "$name==${versions[$name]}"
    done
    PATH=${python%/*}:$PATH
}
