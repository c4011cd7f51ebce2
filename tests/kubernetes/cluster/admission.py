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
        for kind in ("containers", "initContainers"):
            known = CONTAINER if kind == "containers" or settings["sidecars"] else CONTAINER - {"restartPolicy"}
            for at, container in enumerate(spec.get(kind, [])):
                unknown += [f'unknown field "spec.{kind}[{at}].{key}"' for key in container if key not in known]
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
    for at, container in enumerate(spec["containers"] + spec.get("initContainers", [])):
        if not container.get("image"):
            raise invalid(f"spec.containers[{at}].image", "Required value")
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                raise invalid(f"spec.containers[{at}].volumeMounts", f'Not found: "{mount["name"]}"')
    for at, alias in enumerate(spec.get("hostAliases", [])):
        for name_ in alias["hostnames"]:
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name_):
                raise invalid(f"spec.hostAliases[{at}].hostnames", f'Invalid value: "{name_}": a lowercase RFC 1123 subdomain')
    account = spec.setdefault("serviceAccountName", "default")
    if account not in settings["service_accounts"]:
        namespace = settings["namespace"]
        raise forbidden(f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found')
    priority = spec.get("priorityClassName")
    if priority and priority not in settings["priority_classes"]:
        raise forbidden(f"no PriorityClass with name {priority} was found")
    for limits in settings["limit_ranges"]:
        limited(limits, spec, forbidden)
    if settings["restricted"]:
        lacks = unrestricted(spec)
        if lacks:
            raise forbidden(f'violates PodSecurity "restricted:latest": {", ".join(lacks)}')
    hook = settings["webhook"]
    if hook and any(hook["image"] in container["image"] for container in spec["containers"] + spec.get("initContainers", [])):
        raise refused(hook["status"], f'admission webhook "images.example.com" denied the request: {hook["message"]}')
    hard = settings["quota"].get("limits.memory")
    used, wanted = sum(memory(other["spec"]) for other in world.pods.values()), memory(spec)
    if hard is not None and used + wanted > bytes_of(hard):
        raise forbidden(f"exceeded quota: memory, requested: limits.memory={wanted}, used: limits.memory={used}, "
                        f"limited: limits.memory={hard}")
    hard = settings["quota"].get("pods")
    if hard is not None and len(world.pods) >= int(hard):
        raise forbidden(f"exceeded quota: few, requested: pods=1, used: pods={len(world.pods)}, limited: pods={hard}")
    return pod


def memory(spec):
    """The limits of all containers that run at the same time."""
    sidecars = [one for one in spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
    limits = [one.get("resources", {}).get("limits", {}).get("memory") for one in spec["containers"] + sidecars]
    return sum(bytes_of(limit) for limit in limits if limit)


def limited(limits, spec, forbidden):
    """The defaults and the upper bound of a LimitRange for containers."""
    for container in spec["containers"]:
        own = container.setdefault("resources", {}).setdefault("limits", {})
        for resource, amount in limits.get("default", {}).items():
            own.setdefault(resource, amount)
        for resource, most in limits.get("max", {}).items():
            if resource in own and bytes_of(own[resource]) > bytes_of(most):
                raise forbidden(f"maximum {resource} usage per Container is {most}, but limit is {own[resource]}")


def bytes_of(quantity):
    units = {"Ki": 10, "Mi": 20, "Gi": 30}
    return int(quantity[:-2]) << units[quantity[-2:]] if quantity[-2:] in units else int(quantity)


def unrestricted(spec):
    """What Pod Security's level `restricted` misses, in its own order."""
    pod = spec.get("securityContext", {})
    lacks = []

    def check(what, demand, is_met):
        bad = [container["name"] for container in spec["containers"] if not is_met(container.get("securityContext", {}))]
        if bad:
            names = ", ".join(f'"{name}"' for name in bad)
            lacks.append(f"{what} ({demand.format('container ' + names)})")

    check("allowPrivilegeEscalation != false", "{} must set securityContext.allowPrivilegeEscalation=false",
          lambda own: own.get("allowPrivilegeEscalation") is False)
    check("unrestricted capabilities", '{} must set securityContext.capabilities.drop=["ALL"]',
          lambda own: "ALL" in own.get("capabilities", {}).get("drop", []))
    check("runAsNonRoot != true", "pod or {} must set securityContext.runAsNonRoot=true",
          lambda own: own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True)
    check("seccompProfile", 'pod or {} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"',
          lambda own: own.get("seccompProfile", pod.get("seccompProfile", {})).get("type") in ("RuntimeDefault", "Localhost"))
    return lacks
