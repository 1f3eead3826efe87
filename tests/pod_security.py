"""What a cluster's guards ask of a pod: the profile `restricted` of Kubernetes' Pod Security Standards, and OpenShift's constraint restricted-v2."""

# Kinds of volumes that either one lets pass.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
PROFILES = ("RuntimeDefault", "Localhost")
# Of the user ids that a namespace of OpenShift has: openshift.io/sa.scc.uid-range 1000650000/10000; the groups are the same.
USERS = range(1_000_650_000, 1_000_660_000)


def contexts(pod):
    """Of every container its own security context over the pod's."""
    for container in pod.get("initContainers", []) + pod["containers"]:
        yield container["name"], pod.get("securityContext", {}) | container.get("securityContext", {})


def restricted(pod):
    """What the profile `restricted` has against a pod."""
    for what in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(what):
            yield f"pod security: {what}"
    for container in pod.get("initContainers", []) + pod["containers"]:
        if any("hostPort" in port for port in container.get("ports", [])):
            yield "pod security: a port of the host"
    for volume in pod.get("volumes", []):
        if strange := volume.keys() - VOLUMES - {"name"}:
            yield f"pod security: a volume of the kind {sorted(strange)}"
    for name, context in contexts(pod):
        if not context.get("runAsNonRoot") or context.get("runAsUser") == 0:
            yield f"pod security: {name} may run as root"
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield f"pod security: {name} may gain rights"
        capabilities = context.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield f"pod security: {name} has the capabilities {capabilities}"
        if context.get("seccompProfile", {}).get("type") not in PROFILES:
            yield f"pod security: {name} is without seccomp"


def openshift(pod):
    """What restricted-v2 has against a pod, beside that. Users and groups that a pod leaves out are given to it."""
    yield from restricted(pod)
    for name, context in contexts(pod):
        if context.get("runAsUser", USERS[0]) not in USERS:
            yield f"OpenShift: {name} wants the user {context['runAsUser']}, the namespace has {USERS}"
    groups = pod.get("securityContext", {})
    for group in [groups.get("fsGroup", USERS[0]), *groups.get("supplementalGroups", [])]:
        if group not in USERS:
            yield f"OpenShift: the pod wants the group {group}, the namespace has {USERS}"
