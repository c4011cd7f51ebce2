#!/usr/bin/env python3
"""Breaks one promise of the protocol, the one that its file's name says. Otherwise, it is the Python skeleton beside it, `good`.

`its_machines_have_certificates` and `its_machines_have_a_lifetime` break none.
"""

import fcntl
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
FAULT = pathlib.Path(sys.argv[0]).name


def load():
    loader = importlib.machinery.SourceFileLoader("good", str(HERE / "good"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("good", loader))
    loader.exec_module(module)
    return module


good = load()
answer, launch, machines, terminate = good.answer, good.launch, good.machines, good.terminate


def directory(settings):
    path = pathlib.Path(settings["directory"])
    path.mkdir(exist_ok=True)
    return path


def a_repeated_token_makes_two(settings, request):
    return launch(settings, {**request, "token": os.urandom(16).hex()})


def a_killed_launch_is_forgotten(settings, request):
    """The token is noted only when the machine exists."""
    note = directory(settings) / f".token-{request['token']}"
    with open(note.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if note.exists():
            return note.read_text()
        machine = launch(settings, {**request, "token": os.urandom(16).hex()})
        time.sleep(2)
        note.write_text(machine)
        return machine


def ids_are_used_again(settings, request):
    """The smallest number that no machine has."""
    with open(directory(settings) / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = 1
        while True:
            home = good.machine_dir(settings, f"m-{number:024}")
            if not home.exists() or json.loads((home / "record.json").read_text())["tags"] == request["tags"]:
                return launch(settings, {**request, "token": f"{number:024}"})
            number += 1


def forget_ended(settings, machine):
    state = terminate(settings, machine)
    shutil.rmtree(good.machine_dir(settings, machine))
    return state


def the_host_key_is_another(settings, request):
    path = directory(settings) / f".key-{os.getpid()}"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdout=sys.stderr)
    return launch(settings, {**request, "host_key": path.read_text()})


def keygen(*arguments):
    subprocess.run(["ssh-keygen", "-q", *map(str, arguments)], check=True, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def certified(settings, request, principal):
    """The machine has a key of its own, and a certificate of the authority `ca` beside the program."""
    # sshd leaves its working directory.
    key = directory(settings).absolute() / f".key-{request['token']}"
    with open(directory(settings) / ".key-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not pathlib.Path(f"{key}-cert.pub").exists():
            for left in key.parent.glob(f"{key.name}*"):
                left.unlink()
            keygen("-t", "ed25519", "-N", "", "-f", key)
            keygen("-s", HERE / "ca", "-I", "machine", "-h", "-n", principal, "-V", "+1h", f"{key}.pub")
    good.CERTIFICATE = f"{key}-cert.pub"
    return launch(settings, {**request, "host_key": key.read_text()})


def its_machines_have_certificates(settings, request):
    return certified(settings, request, request["name"])


def a_certificate_is_for_another_machine(settings, request):
    return certified(settings, request, "another-machine")


def the_log_has_the_request(settings, request):
    print(request["host_key"], file=sys.stderr)
    return launch(settings, request)


def a_repeat_is_refused_for_its_quota(settings, request):
    """The quota is looked at before the token."""
    if any(machine["tags"] == request["tags"] for machine in machines(settings, request["tags"]["greenroom-pool"])):
        raise good.Refusal(good.QUOTA, "the quota of machines is reached")
    return launch(settings, request)


def a_lifetime_is_only_claimed(settings, request):
    return launch(settings, request)


def its_machines_have_a_lifetime(settings, request):
    """A process of its own session ends the machine."""
    machine = launch(settings, request)
    home = good.machine_dir(settings, machine)
    script = f"sleep {request['lifetime_s']}; kill -9 {good.pid_of(home) or ''}; touch '{home}/ended'"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if request["lifetime_s"] < 600:
        subprocess.Popen(["sh", "-c", script], start_new_session=True, **quiet)
    return machine


def an_unreachable_cloud_is_empty(settings, pool):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as cloud:
        try:
            cloud.connect(("127.0.0.1", 9))
        except OSError:
            return []
    return machines(settings, pool)


def a_machine_stays_pending(settings, pool):
    return [{**machine, "state": "pending"} for machine in machines(settings, pool)]


def a_part_is_called_complete(settings, pool):
    return machines(settings, pool)[:1]


def every_pool(settings):
    pools = {json.loads(path.read_text())["tags"]["greenroom-pool"] for path in directory(settings).glob("m-*/record.json")}
    return [machine for pool in sorted(pools) for machine in machines(settings, pool)]


def other_pools_are_listed(settings, pool):
    return [{**one, "tags": {**one["tags"], "greenroom-pool": pool}} for one in every_pool(settings)]


def a_tag_is_dropped(settings, pool):
    found = machines(settings, pool)
    for machine in found:
        del machine["tags"]["greenroom-number"]
    return found


def a_deleted_machine_stays_listed(settings, pool):
    """From notes of the program's own, which only `terminate` removes."""
    notes = directory(settings) / ".notes"
    notes.mkdir(exist_ok=True)
    for machine in machines(settings, pool):
        note = notes / machine["machine"]
        note.write_text(json.dumps({**machine, "state": "running"}))
        if (good.machine_dir(settings, note.name) / "ended").exists():
            note.unlink(missing_ok=True)
    found = [json.loads(text) for text in map(read, sorted(notes.iterdir())) if text]
    return [machine for machine in found if machine["tags"]["greenroom-pool"] == pool]


def read(note):
    try:
        return note.read_text()
    except FileNotFoundError:
        return ""


def terminate_noted(settings, machine):
    try:
        return terminate(settings, machine)
    finally:
        (directory(settings) / ".notes" / machine).unlink(missing_ok=True)


def gone_is_said_too_early(settings, machine):
    """A process of its own session ends the machine some seconds later."""
    good.existing(settings, machine)
    script = f"sleep 8; kill -9 {good.pid_of(good.machine_dir(settings, machine)) or ''}; touch '{good.machine_dir(settings, machine)}/ended'"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(["sh", "-c", script], start_new_session=True, **quiet)
    return "gone"


def an_unknown_machine_is_gone(settings, machine):
    """Unless there is no machine at all."""
    try:
        return terminate(settings, machine)
    except good.Refusal:
        if every_pool(settings):
            return "gone"
        raise


def rubbish_comes_first(verb, request):
    print("Loading the profile…")
    return answer(verb, request)


def output_has_no_end(verb, request):
    if verb == "list":
        while True:
            sys.stdout.write("[" * 65536)
    return answer(verb, request)


def list_hangs(verb, request):
    if verb == "list":
        time.sleep(600)
    return answer(verb, request)


def a_process_stays(verb, request):
    if verb == "list":
        subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return answer(verb, request)


def an_unknown_verb_succeeds(verb, request):
    known = ("capabilities", "launch", "list", "terminate", "console")
    return answer(verb, request) if verb in known else {}


def any_protocol_is_claimed(verb, request):
    if verb == "capabilities":
        return {**answer(verb, {**request, "protocols": [1]}), "protocol": max(request["protocols"])}
    return answer(verb, request)


def an_error_has_exit_code_0(verb, request):
    try:
        return answer(verb, request)
    except good.Refusal as refusal:
        return {"error": refusal.error}


def an_unknown_machine_is_an_error(verb, request):
    if verb == "terminate":
        pathlib.Path(request["machine"]).rename("gone")
    return answer(verb, request)


ANSWERS = [
    rubbish_comes_first,
    output_has_no_end,
    list_hangs,
    a_process_stays,
    an_unknown_verb_succeeds,
    any_protocol_is_claimed,
    an_error_has_exit_code_0,
    an_unknown_machine_is_an_error,
]
LAUNCHES = [
    a_repeated_token_makes_two,
    a_killed_launch_is_forgotten,
    ids_are_used_again,
    the_host_key_is_another,
    its_machines_have_certificates,
    a_certificate_is_for_another_machine,
    the_log_has_the_request,
    a_repeat_is_refused_for_its_quota,
    a_lifetime_is_only_claimed,
    its_machines_have_a_lifetime,
]
LISTS = [
    a_part_is_called_complete,
    other_pools_are_listed,
    a_tag_is_dropped,
    a_deleted_machine_stays_listed,
    an_unreachable_cloud_is_empty,
    a_machine_stays_pending,
]
ENDS = [gone_is_said_too_early, an_unknown_machine_is_gone]


def fault(functions, otherwise):
    return next((function for function in functions if function.__name__ == FAULT), otherwise)


if FAULT not in {function.__name__ for function in ANSWERS + LAUNCHES + LISTS + ENDS}:
    sys.exit(f"there is no fault {FAULT}")
good.answer = fault(ANSWERS, answer)
good.launch = fault(LAUNCHES, launch)
good.machines = fault(LISTS, machines)
good.terminate = fault(ENDS, terminate)
able, write = good.capabilities, good.write
if "lifetime" in FAULT:
    good.capabilities = lambda settings: {**able(settings), "lifetime": True}
if "certificate" in FAULT:
    good.capabilities = lambda settings: {**able(settings), "host_key": "certificate"}
    good.write = lambda path, text: write(
        path, text + f"HostCertificate {good.CERTIFICATE}\n" if path.name == "sshd_config" else text
    )
if FAULT == "ids_are_used_again":
    good.terminate = forget_ended
if FAULT == "a_deleted_machine_stays_listed":
    good.terminate = terminate_noted
sys.exit(good.main())
