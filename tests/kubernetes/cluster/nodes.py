"""The scheduler, the kubelets and their containers: what becomes of pods."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from world import now

# The container's own file systems; then its command, as its first process.
CONTAINER = """
mount --make-rprivate / || exit 128
# Elsewhere than on a file system that is about to be hidden.
[ -z "$VOLUME" ] || { mount --bind "$VOLUME" /mnt && cd /mnt || exit 128; }
mount -t tmpfs -o mode=755 tmpfs /run && mkdir -m 777 /run/greenroom && mount -t proc proc /proc || exit 128
[ -z "$VOLUME" ] || { mount --bind . /run/greenroom && mount -o remount,bind,ro /run/greenroom && cd / && umount /mnt || exit 128; }
unset VOLUME
[ -z "$MOUNTS" ] || printf '%s' "$MOUNTS" | while read -r from to; do
  mkdir -p "$to" && mount --bind "$from" "$to" || exit 128
done || exit 128
mount --bind "$HOSTS" /etc/hosts || exit 128
unset MOUNTS HOSTS
# A developer's files are none of the image's.
mount -t tmpfs -o mode=700 tmpfs ~root || exit 128
[ -z "$HIDE_SSHD" ] || mount --bind /dev/null /usr/sbin/sshd
unset HIDE_SSHD
[ -z "$NO_SHELL" ] || mount --bind /dev/null /bin/sh
unset NO_SHELL
[ -z "$RUN_AS" ] || set -- env -u RUN_AS setpriv "--reuid=$RUN_AS" "--regid=$RUN_AS" --clear-groups -- "$@"
[ -n "$RUN_AS" ] || unset RUN_AS
exec "$@"
"""
# An init container: a root with the files of its image, which is one program, and the volume.
INIT = """
mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && mkdir -p /mnt/run/greenroom /mnt/proc || exit 128
[ -z "$PROGRAM" ] || cp "$PROGRAM" /mnt/greenroom-server || exit 128
mount --bind "$VOLUME" /mnt/run/greenroom && mount -t proc proc /mnt/proc && mount -o remount,ro /mnt || exit 128
[ -e "/mnt$1" ] || { echo "exec: \\"$1\\": stat $1: no such file or directory"; exit 127; }
unset PROGRAM VOLUME
exec chroot /mnt "$@"
"""
PULL = {
    "invalid": ("InvalidImageName", "couldn't parse image name"),
    "absent": ("ImagePullBackOff", "Back-off pulling image: not found"),
    "never": ("ErrImageNeverPull", "Container image is not present with pull policy of Never"),
    "missing": ("ErrImagePull", 'rpc error: code = NotFound desc = failed to pull and unpack image "IMAGE": failed to resolve '
                                'reference "IMAGE": IMAGE: not found'),
    "denied": ("ErrImagePull", 'failed to resolve reference "IMAGE": pull access denied, repository does not exist or may '
                               'require authorization: server message: insufficient_scope: authorization failed'),
    "down": ("ErrImagePull", 'failed to do request: Head "https://registry/v2/": dial tcp 10.0.0.1:443: connect: connection '
                             'refused'),
}
NO_PROGRAM = ("failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
              'unable to start container process: error during container init: exec: "PROGRAM": executable file not found in '
              "$PATH")
# How long a container that exited is waited for.
RESTART_S = 0.2
EVICTED = {
    "disk": "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ",
    "node disk": "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi. Container job was "
                 "using 20Mi, request is 0, has larger consumption of ephemeral-storage. ",
    "node memory": "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. ",
}


class Nodes:
    def __init__(self, world):
        self.world = world
        self.count = 0
        self.ended = False

    def run(self):
        while not self.ended:
            with self.world.lock:
                for pod in list(self.world.pods.values()):
                    self.step(pod)
            time.sleep(0.01)

    def end(self):
        with self.world.lock:
            self.ended = True
            for pod in self.world.pods.values():
                self.kill(pod)

    def step(self, pod):
        spec, status, own = pod["spec"], pod["status"], pod["_"]
        if "deletionTimestamp" in pod["metadata"]:
            return self.terminate(pod)
        if status["phase"] in ("Failed", "Succeeded"):
            return None
        if not spec.get("nodeName"):
            return self.schedule(pod)
        process = own.get("process")
        if process is None:
            if self.world.age_ms(pod) >= self.world.settings["boot_ms"] and "stuck" not in own:
                if self.initialized(pod) and self.sidecars_started(pod):
                    self.start(pod)
        elif process.poll() is not None:
            self.exited(pod, process.returncode)
        else:
            self.restart_sidecars(pod)
        if status["phase"] == "Failed":
            return None
        deadline = spec.get("activeDeadlineSeconds")
        if deadline and time.monotonic() - own["placed"] >= deadline:
            self.kill(pod)
            status.update(phase="Failed", reason="DeadlineExceeded",
                          message="Pod was active on the node longer than the specified deadline")
            self.world.change(pod)
        return None

    def schedule(self, pod):
        world, own = self.world, pod["_"]
        if world.age_ms(pod) < world.settings["schedule_ms"]:
            return
        for node in world.settings["nodes"]:
            here = sum(1 for other in world.pods.values() if other["spec"].get("nodeName") == node["name"])
            if not own["unschedulable"] and here < node["pods"] and fits(pod["spec"], node):
                pod["spec"]["nodeName"] = node["name"]
                own["placed"] = time.monotonic()
                world.condition(pod, "PodScheduled", "True")
                pod["status"]["containerStatuses"] = statuses(pod, {"waiting": {"reason": "ContainerCreating"}})
                pod["status"]["startTime"] = now()
                world.event(pod, "Scheduled", f"Successfully assigned to {node['name']}")
                return world.change(pod)
        if not own.get("refused"):
            own["refused"] = True
            count = len(world.settings["nodes"])
            message = f"0/{count} nodes are available: {count} Insufficient cpu."
            world.condition(pod, "PodScheduled", "False", "Unschedulable", message)
            world.event(pod, "FailedScheduling", message)
            if world.settings["autoscaler"]:
                world.event(pod, world.settings["autoscaler"], "pod triggered scale-up, or not")
            world.change(pod)
        return None

    def initialized(self, pod):
        """Runs the init container to its end. True: the other containers may start."""
        world, own = self.world, pod["_"]
        containers = pod["spec"].get("initContainers", [])
        if not containers or "volume" in own:
            return True
        container, kind = containers[0], kind_of(containers[0])
        if kind == "absent":
            message = f'failed to resolve reference "{container["image"]}": {container["image"]}: not found'
            own["stuck"] = True
            pod["status"]["initContainerStatuses"] = [status_of(container, {"waiting": {
                "reason": "ErrImagePull", "message": message}})]
            world.change(pod)
            return False
        volume = os.path.join(world.directory, pod["metadata"]["uid"] + ".volume")
        os.mkdir(volume)
        os.chmod(volume, 0o777)
        program = "" if kind == "empty" else world.settings["server_program"]
        run = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "/bin/sh", "-c", INIT, "sh", *container["command"]],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "VOLUME": volume, "PROGRAM": program},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False)
        own["volume"] = volume
        ended = {"exitCode": run.returncode, "reason": "Completed", "message": run.stdout[-2048:].decode(errors="replace"),
                 "finishedAt": now()}
        if run.returncode:
            missing = run.returncode == 127
            ended.update(reason="StartError" if missing else "Error", exitCode=128 if missing else run.returncode)
            own["stuck"] = True
            pod["status"]["phase"] = "Failed"
        pod["status"]["initContainerStatuses"] = [status_of(container, {"terminated": ended})]
        world.change(pod)
        return not run.returncode

    def sidecars_started(self, pod):
        """Starts one sidecar after the other. True: the job's container may start."""
        sidecars = pod["_"].setdefault("sidecars", {})
        for container in sidecars_of(pod):
            if container["name"] not in sidecars and not self.start_sidecar(pod, container):
                return False
            if not self.is_started(container):
                return False
        self.restart_sidecars(pod)
        return True

    @staticmethod
    def is_started(container):
        probe = container.get("startupProbe")
        if not probe:
            return True
        try:
            socket.create_connection(("127.0.0.1", probe["tcpSocket"]["port"]), 1).close()
            return True
        except OSError:
            return False

    def start_sidecar(self, pod, container, restarts=0):
        """False: it can never start."""
        own, name = pod["_"], container["name"]
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": pod["metadata"]["name"], "HIDE_SSHD": "", "VOLUME": ""}
        for variable in container.get("env", []):
            environment[variable["name"]] = expanded(variable.get("value", ""), environment)
        words = [expanded(word, environment) for word in container.get("command", []) + container.get("args", [])]
        words = words or ["sleep", "infinity"]
        wrong = waiting(container) or (None if shutil.which(words[0]) else {
            "reason": "RunContainerError", "message": NO_PROGRAM.replace("PROGRAM", words[0])})
        if wrong:
            own["stuck"] = True
            self.show_sidecar(pod, container, {"waiting": wrong}, restarts)
            return False
        own["sidecars"][name] = self.process(pod, container, words, environment, name)
        own.setdefault("restarts", {})[name] = restarts
        self.show_sidecar(pod, container, {"running": {"startedAt": now()}}, restarts)
        return True

    def restart_sidecars(self, pod):
        for container in sidecars_of(pod):
            name = container["name"]
            process = pod["_"]["sidecars"][name]
            if process.poll() is None:
                continue
            at = pod["_"].setdefault("restart_at", {}).setdefault(name, time.monotonic() + RESTART_S)
            if time.monotonic() >= at:
                del pod["_"]["restart_at"][name]
                self.start_sidecar(pod, container, pod["_"]["restarts"][name] + 1)

    def show_sidecar(self, pod, container, state, restarts):
        shown = pod["status"].setdefault("initContainerStatuses", [])
        shown[:] = [one for one in shown if one["name"] != container["name"]]
        shown.append({**status_of(container, state, "running" in state), "restartCount": restarts})
        self.world.change(pod)

    def process(self, pod, container, words, environment, log):
        """A container's first process, with the pod's host names and the container's volumes."""
        directory, uid = self.world.directory, pod["metadata"]["uid"]
        hosts = os.path.join(directory, uid + ".hosts")
        with open(hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n")
            for alias in pod["spec"].get("hostAliases", []):
                file.write(f"{alias['ip']} {' '.join(alias['hostnames'])}\n")
        mounts = ""
        for mount in container.get("volumeMounts", []):
            if mount["name"] != "greenroom":
                source = os.path.join(directory, f"{uid}.{mount['name']}")
                os.makedirs(source, exist_ok=True)
                os.chmod(source, 0o777)
                mounts += f"{source} {mount['mountPath']}\n"
        kind = kind_of(container)
        given = {"HOSTS": hosts, "MOUNTS": mounts, "RUN_AS": "1234" if kind == "user" else "", "NO_SHELL": "yes" if kind == "scratch" else ""}
        path = os.path.join(directory, f"{uid}.{log}" if log else uid + ".log")
        with open(path, "ab") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "/bin/sh", "-c", CONTAINER, "sh", *words],
                env={**environment, **given}, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/")

    def start(self, pod):
        world, own = self.world, pod["_"]
        container = next(one for one in pod["spec"]["containers"] if one["name"] == "job")
        kind, wrong = kind_of(container), waiting(container)
        if wrong:
            own["stuck"] = True
            pod["status"]["containerStatuses"] = statuses(pod, {"waiting": wrong})
            return world.change(pod)
        address = self.address()
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": pod["metadata"]["name"],
                       "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HIDE_SSHD": "yes" if kind == "bare" else "", "VOLUME": own.get("volume", "")}
        # Pods have no network of their own here: another address stands for a pod's loopback interface, and nothing listens on
        # the one that the cluster shows.
        own["inside"] = self.address()
        for variable in container.get("env", []):
            value = variable.get("value", address)
            environment[variable["name"]] = own["inside"] if value == "127.0.0.1" else value
        if environment.get("GREENROOM_LISTEN") == address:
            own["inside"] = address
        own["log"] = os.path.join(world.directory, pod["metadata"]["uid"] + ".log")
        own["process"] = self.process(pod, container, container["command"], environment, "")
        pod["status"].update(phase="Running", podIP=address, podIPs=[{"ip": address}], hostIP="127.0.0.1")
        pod["status"]["containerStatuses"] = statuses(pod, {"running": {"startedAt": now()}}, True)
        world.condition(pod, "Ready", "True")
        world.event(pod, "Started", "Started container job")
        return world.change(pod)

    def address(self):
        """One of loopback's sixteen million, which no other test's pods have while this process lives."""
        self.count += 1
        mine = os.getpid()
        return f"127.{16 + mine % 200}.{mine // 200 % 256}.{1 + self.count % 254}"

    def exited(self, pod, code):
        with open(pod["_"]["log"], "rb") as log:
            tail = log.read()[-2048:].decode(errors="replace")
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": tail, "finishedAt": now()}
        if pod["_"].get("oom"):
            ended["reason"] = "OOMKilled"
        pod["status"].update(phase="Succeeded" if code == 0 else "Failed",
                             containerStatuses=statuses(pod, {"terminated": ended}))
        self.world.condition(pod, "Ready", "False", "PodFailed")
        self.world.change(pod)

    def terminate(self, pod):
        own = pod["_"]
        if time.monotonic() < own.get("kill_at", 0):
            return
        self.kill(pod)
        process = own.get("process")
        if (process is None or process.poll() is not None) and not pod["metadata"].get("finalizers"):
            self.world.remove(pod)

    @staticmethod
    def kill(pod):
        for process in [pod["_"].get("process"), *pod["_"].get("sidecars", {}).values()]:
            if process is not None and process.poll() is None:
                kill_all(process)
                process.wait()

    def evict(self, pod, message):
        """As the kubelet does it: the pod's status has no reason if its first process exits with 0."""
        code = self.stop(pod)
        self.exited(pod, code)
        self.world.event(pod, "Evicted", message)
        if code != 0:
            pod["status"].update(phase="Failed", reason="Evicted", message=message)
        self.world.change(pod)

    @staticmethod
    def stop(pod):
        """SIGTERM to the first process, and SIGKILL a second later; its exit status."""
        process = pod["_"]["process"]
        os.kill(children(process)[0], signal.SIGTERM)
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            kill_all(process)
            code = process.wait()
        return 128 - code if code < 0 else code

    def disrupt(self, pod, how):
        """Ends a pod as the cluster does."""
        world = self.world
        if how == "break":
            return self.kill(pod)
        if how == "oom":
            pod["_"]["oom"] = True
            return self.kill(pod)
        if how in EVICTED:
            return self.evict(pod, EVICTED[how])
        if how == "by hand":
            pod["metadata"].update(deletionTimestamp=now(), deletionGracePeriodSeconds=1)
        else:
            world.condition(pod, "DisruptionTarget", "True", how)
            world.change(pod)
            pod["metadata"].update(deletionTimestamp=now(), deletionGracePeriodSeconds=1)
        pod["_"]["kill_at"] = time.monotonic()
        world.change(pod)
        return self.terminate(pod)


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as pids:
        return [int(pid) for pid in pids.read().split()]


def kill_all(process):
    """Kills `unshare` and a container's first process, with which all others end. `--kill-child` has no effect on a process that has
    changed its user."""
    first = []
    for pid in children(process):
        with contextlib.suppress(ProcessLookupError):
            first.append(os.pidfd_open(pid))
    process.kill()
    for pidfd in first:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def kind_of(container):
    """The first part of an image's name says what the image is like."""
    return container["image"].removeprefix("docker.io/").split("/")[0]


def waiting(container):
    """Why a container's image does not come; `None`: it is there."""
    if kind_of(container) not in PULL:
        return None
    reason, message = PULL[kind_of(container)]
    return {"reason": reason, "message": message.replace("IMAGE", container["image"])}


def sidecars_of(pod):
    return [one for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy") == "Always"]


def expanded(text, environment):
    """`$(NAME)` is replaced if there is such a variable, and `$$` is one `$`."""
    def value(match):
        return "$" if match.group(0) == "$$" else environment.get(match.group(1), match.group(0))
    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value, text)


def statuses(pod, state, ready=False):
    return [status_of(container, state, ready) for container in pod["spec"]["containers"]]


def status_of(container, state, ready=False):
    return {"name": container["name"], "image": container["image"], "imageID": "", "ready": ready, "restartCount": 0,
            "started": ready, "state": state}


def fits(spec, node):
    """True if a node has room for the containers, the labels, and only taints that the pod tolerates."""
    sidecars = [one for one in spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
    if len(spec["containers"]) + len(sidecars) > node.get("containers", 1000):
        return False
    labels = node["labels"]
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    return all(any(tolerates(one, taint) for one in spec.get("tolerations", [])) for taint in node["taints"])


def tolerates(toleration, taint):
    if toleration.get("key") != taint["key"] or toleration.get("effect", taint["effect"]) != taint["effect"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value") == taint.get("value")
