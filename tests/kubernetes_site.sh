# Kubernetes' schemas, a Python package, for scripts to source after tests/real/fetch.sh: sets `python`. They are kept in $DEPLOY_SITE.
venv "${DEPLOY_SITE:-${TMPDIR:-/tmp}/pd-proxy-deploy-1.37.0}"
if ! "$python" -c "import kubernetes_validate as k, yaml; assert k.__version__ == '1.37.0'" 2>/dev/null; then
    fetch reaches_python "Kubernetes' schemas" "$pip" install --quiet --disable-pip-version-check \
        kubernetes-validate==1.37.0 PyYAML==6.0.3 'tomli; python_version < "3.11"'
fi
