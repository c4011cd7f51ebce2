"""What the API server refuses to create, in its own words."""

import copy
import re

SPEC = {
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "hostAliases", "hostNetwork", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector",
    "priorityClassName", "restartPolicy", "runtimeClassName", "schedulerName", "securityContext", "serviceAccountName",
    "shareProcessNamespace", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
}
CONTAINER = {
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "livenessProbe", "name", "ports", "readinessProbe",
    "resources", "restartPolicy", "securityContext", "startupProbe", "terminationMessagePath", "terminationMessagePolicy",
    "volumeDevices", "volumeMounts", "workingDir",
}


def admitted(world, body, query, refused):
    """The pod with its defaults."""
    pod = copy.deepcopy(body)
    settings, name = world.settings, pod["metadata"].get("name", "")
    spec = pod["spec"]
    if query.get("fieldValidation") == "Strict":
        unknown = [f'unknown field "spec.{key}"' for key in spec if key not in SPEC]
        for at, container in enumerate(spec["containers"]):
            unknown += [f'unknown field "spec.containers[{at}].{key}"' for key in container if key not in CONTAINER]
        if unknown:
            raise refused(400, f"strict decoding error: {', '.join(unknown)}")

    def forbidden(why):
        return refused(403, f'pods "{name}" is forbidden: {why}', details={"kind": "pods", "name": name})

    def invalid(field, why):
        return refused(422, f'Pod "{name}" is invalid: {field}: {why}', details={
            "kind": "Pod", "name": name, "causes": [{"reason": "FieldValueInvalid", "field": field, "message": why}]})

    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", name):
        raise invalid("metadata.name", f"Invalid value: {name!r}")
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for at, container in enumerate(spec["containers"]):
        if not container.get("image"):
            raise invalid(f"spec.containers[{at}].image", "Required value")
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                raise invalid(f"spec.containers[{at}].volumeMounts", f'Not found: "{mount["name"]}"')
    account = spec.setdefault("serviceAccountName", "default")
    if account not in settings["service_accounts"]:
        namespace = settings["namespace"]
        raise forbidden(f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found')
    priority = spec.get("priorityClassName")
    if priority and priority not in settings["priority_classes"]:
        raise forbidden(f"no PriorityClass with name {priority} was found")
    if settings["restricted"] and not spec.get("securityContext", {}).get("runAsNonRoot"):
        raise forbidden('violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "job" must set '
                        'securityContext.runAsNonRoot=true)')
    hard = settings["quota"].get("pods")
    if hard is not None and len(world.pods) >= int(hard):
        raise forbidden(f"exceeded quota: few, requested: pods=1, used: pods={len(world.pods)}, limited: pods={hard}")
    return pod
