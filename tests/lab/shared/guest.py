"""Parses user data like cloud-init: the changes to an instance before its first login."""

import base64
import dataclasses
import gzip
import zlib

import yaml

# Keys of #cloud-config that the emulator applies, and those that it ignores without effect on tests.
HONOURED = {
    "bootcmd",
    "disable_root",
    "power_state",
    "runcmd",
    "ssh_authorized_keys",
    "ssh_deletekeys",
    "ssh_keys",
    "users",
    "write_files",
}
LEFT_ASIDE = {
    "chpasswd",
    "fqdn",
    "growpart",
    "hostname",
    "manage_etc_hosts",
    "package_update",
    "package_upgrade",
    "preserve_hostname",
    "ssh_genkeytypes",
    "ssh_pwauth",
    "timezone",
}


@dataclasses.dataclass
class File:
    path: str
    content: bytes
    mode: int = 0o644
    append: bool = False


@dataclasses.dataclass
class Guest:
    """The changes inside an instance: users and keys, files, then scripts, each a text for /bin/sh."""

    files: list = dataclasses.field(default_factory=list)
    # User -> public keys.
    keys: dict = dataclasses.field(default_factory=dict)
    scripts: list = dataclasses.field(default_factory=list)
    # Messages about unsupported content.
    complaints: list = dataclasses.field(default_factory=list)

    def authorise(self, user, keys):
        self.keys.setdefault(user, []).extend(keys)


def read(user_data, default_user="root"):
    """A guest from user data: empty, `#cloud-config`, or a script that begins with `#!`; also compressed by gzip."""
    guest = Guest()
    if user_data[:2] == b"\x1f\x8b":
        try:
            user_data = gzip.decompress(user_data)
        except (OSError, EOFError, zlib.error) as error:
            guest.complaints.append(f"user data looks compressed, but is not sound: {error}")
            return guest
    if not user_data.strip():
        return guest
    if user_data.startswith(b"#!"):
        guest.scripts.append(user_data)
    elif user_data.startswith(b"#cloud-config"):
        _cloud_config(guest, user_data, default_user)
    else:
        guest.complaints.append(f"user data begins with {user_data[:20]!r}; the lab reads `#cloud-config` and `#!`")
    return guest


def _cloud_config(guest, text, default_user):
    try:
        config = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        guest.complaints.append(f"#cloud-config is no YAML: {error}")
        return
    if not isinstance(config, dict):
        guest.complaints.append("#cloud-config must hold keys and values")
        return
    for key in sorted(set(config) - HONOURED - LEFT_ASIDE):
        guest.complaints.append(f"the lab does not know the key `{key}` of #cloud-config")
    _host_keys(guest, config.get("ssh_keys") or {})
    guest.authorise(default_user, config.get("ssh_authorized_keys") or [])
    for user in config.get("users") or []:
        if user == "default":
            continue
        if not isinstance(user, dict) or "name" not in user:
            guest.complaints.append(f"a user of #cloud-config needs a name: {user!r}")
            continue
        guest.authorise(user["name"], user.get("ssh_authorized_keys") or [])
    for file in config.get("write_files") or []:
        _written(guest, file)
    guest.scripts[:0] = [_commands(config.get("bootcmd") or [])] if config.get("bootcmd") else []
    if config.get("runcmd"):
        guest.scripts.append(_commands(config["runcmd"]))
    power = config.get("power_state")
    if power:
        delay = str(power.get("delay", "now"))
        guest.scripts.append(f"#!/bin/sh\nshutdown -P {delay}\n".encode())


def _host_keys(guest, keys):
    for name, value in keys.items():
        kind, _, part = name.rpartition("_")
        if part not in ("private", "public") or kind not in ("ed25519", "ecdsa", "rsa"):
            guest.complaints.append(f"the lab does not know the host key `{name}` of #cloud-config")
            continue
        path = f"/etc/ssh/ssh_host_{kind}_key" + (".pub" if part == "public" else "")
        content = value.encode() if value.endswith("\n") else value.encode() + b"\n"
        guest.files.append(File(path, content, 0o644 if part == "public" else 0o600))


def _written(guest, file):
    content = str(file.get("content") or "").encode()
    encoding = file.get("encoding", "text/plain")
    if encoding in ("b64", "base64"):
        content = base64.b64decode(content)
    elif encoding in ("gz+b64", "gzip+base64", "gz+base64", "gzip+b64"):
        content = gzip.decompress(base64.b64decode(content))
    elif encoding != "text/plain":
        guest.complaints.append(f"the lab does not know the encoding `{encoding}` of write_files")
    mode = file.get("permissions", "0644")
    guest.files.append(File(file["path"], content, int(str(mode), 8), bool(file.get("append", False))))


def _commands(commands):
    """A list of commands in cloud-init's form: texts for the shell, or lists of arguments."""
    lines = ["#!/bin/sh"]
    for command in commands:
        words = [command] if isinstance(command, str) else [_quoted(str(word)) for word in command]
        lines.append(" ".join(words))
    return ("\n".join(lines) + "\n").encode()


def _quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"
