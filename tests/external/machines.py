#!/usr/bin/env python3
"""Machines of the tests' platform, which carry tags. docs/providers/external.md describes the protocol."""

import fcntl
import json
import os
import sys
import time
import uuid

request = json.load(sys.stdin)
settings = request["settings"]
machines = os.path.join(settings["platform"], "machines")
faults = os.path.join(settings["platform"], "faults")
careless = "careless" in settings


def answer(document):
    json.dump(document, sys.stdout)


def refuse(code, error):
    answer({"error": error, "scope": "shelf 1", "retry_after_s": 1})
    sys.exit(code)


def fault(name):
    """The content of a fault that happens once."""
    try:
        with open(os.path.join(faults, name)) as file:
            content = file.read()
        os.remove(os.path.join(faults, name))
        return content
    except FileNotFoundError:
        return None


def load(machine, name):
    with open(os.path.join(machines, machine, name)) as file:
        return json.load(file)


def known():
    return sorted(name for name in os.listdir(machines) if os.path.exists(os.path.join(machines, name, "request")))


def capabilities():
    answer({
        "protocol": 1, "name": "rack", "version": "1.0", "account": "rack 7",
        "idempotent_launch": not careless, "appears_within_s": int(settings.get("appears_within_s", 5)),
        "lifetime": True, "verbs": ["endpoint", "console"], "price": "nothing",
    })


def launch():
    if os.path.exists(os.path.join(faults, "full")):
        refuse(11, "the rack is full")
    code = fault("refuse")
    if code:
        refuse(int(code), "as the test says")
    with open(os.path.join(faults, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for machine in known():
            if not careless and load(machine, "request")["token"] == request["token"]:
                return answer({"machine": machine})
        if fault("forget") is not None:
            sys.exit(1)
        machine = "m-" + uuid.uuid4().hex[:8]
        directory = os.path.join(machines, machine)
        os.mkdir(directory)
        with open(os.path.join(directory, ".new"), "w") as file:
            json.dump(request, file)
        os.rename(os.path.join(directory, ".new"), os.path.join(directory, "request"))
    if fault("lose") is not None:
        sys.exit(1)
    answer({"machine": machine})


def listed(machine):
    try:
        state = load(machine, "state")
    except FileNotFoundError:
        state = {"state": "starting"}
    # The address comes from `endpoint`.
    return {"machine": machine, "tags": load(machine, "request")["tags"], "state": state["state"],
            "description": "a shelf of the rack"}


def list_all():
    hidden = float(settings.get("hidden_s", 0))
    found = []
    for machine in known():
        try:
            age = time.time() - os.stat(os.path.join(machines, machine, "request")).st_mtime
            if age >= hidden:
                found.append(listed(machine))
        except FileNotFoundError:
            pass
    answer({"complete": True, "machines": found})


def of_machine(name):
    try:
        return load(request["machine"], name)
    except FileNotFoundError:
        refuse(10, "no such machine")


def endpoint():
    state = of_machine("state")
    if "address" not in state:
        refuse(16, "it has no address yet")
    answer({"address": state["address"], "port": state["port"]})


def terminate():
    of_machine("request")
    try:
        open(os.path.join(machines, request["machine"], "end"), "w").close()
    except FileNotFoundError:
        refuse(10, "no such machine")
    answer({"state": "stopping"})


def console():
    try:
        with open(os.path.join(machines, request["machine"], "console")) as file:
            answer({"text": file.read()})
    except FileNotFoundError:
        refuse(10, "no such machine")


{"capabilities": capabilities, "launch": launch, "list": list_all, "endpoint": endpoint,
 "terminate": terminate, "console": console}[sys.argv[-1]]()
