# Whether the engine runs containers, shown by one of Greenroom's own: an empty image with the programs of the machine.
# Nothing that a job, an image or a registry wrote takes part. For any POSIX shell, as who runs the engine.
# Set above: name, engine, rootless (empty: root runs the engine), limit (of each of its commands, in seconds).

# Runs a command with a limit, where the machine has one.
limited() {
  if command -v timeout >/dev/null; then timeout -k 5 "$limit" "$@"; else "$@"; fi
}

# The error of a command, on one line.
trouble() {
  printf '%s: ' "$1"
  tail -n 3 "$sound/error" 2>/dev/null | tail -c 800 | tr '\n\r\t' '   '
}

# True if a directory's file system has 100 MiB and 1000 inodes. Some have no fixed number of inodes.
has_room() {
  free=$(df -Pk "$1" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })
  case $free in '' | *[!0-9]*) return 0 ;; esac
  [ "$free" -ge 102400 ] || { unsound="the disk is full: $((free / 1024)) MiB free in $1"; return 1; }
  inodes=$(df -Pi "$1" 2>/dev/null | { read -r _; read -r _ all _ free _; [ "$all" = 0 ] || echo "$free"; })
  case $inodes in '' | *[!0-9]*) return 0 ;; esac
  [ "$inodes" -ge 1000 ] || { unsound="the disk is full: $inodes inodes free in $1"; return 1; }
}

# True if a container starts in this network and ends with success. Where jobs have privileged containers only, another
# kind need not work: starts NETWORK.
starts() {
  if [ -n "$rootless" ]; then
    run "$1" --cgroups=disabled
  else
    run "$1" || run "$1" --privileged
  fi
}

run() {
  set -- --rm --network "$@"
  for dir in /bin /lib /lib64 /usr /nix /gnu; do
    [ ! -d "$dir" ] || set -- "$@" --volume "$dir:$dir:ro"
  done
  limited "$engine" run "$@" "$empty" /bin/sh -c : >/dev/null 2>"$sound/error"
}

# The check: sound, or sound network. Sets `unsound` if it fails.
sound() {
  unsound='' empty='' root=''
  command -v "$engine" >/dev/null || { unsound="$engine is not installed"; return 1; }
  sound=$(mktemp -d "${TMPDIR:-/tmp}/greenroom-check.XXXXXX" 2>/dev/null) || sound=$(mktemp -d /dev/shm/greenroom-check.XXXXXX 2>/dev/null) ||
    { has_room "${TMPDIR:-/tmp}" && unsound="cannot create a directory in ${TMPDIR:-/tmp}"; return 1; }
  tried "$1"
  passed=$?
  [ -z "$empty" ] || limited "$engine" rmi --force "$empty" >/dev/null 2>&1
  rm -rf "$sound"
  return "$passed"
}

tried() {
  case $engine in docker) at='{{.DockerRootDir}}' ;; *) at='{{.Store.GraphRoot}}' ;; esac
  root=$(limited "$engine" info --format "$at" 2>"$sound/error") || {
    has_room "$HOME" && unsound=$(trouble "\`$engine info\` failed")
    return 1
  }
  has_room "${root:-/}" || return
  [ -n "$rootless" ] || has_room /var/tmp || return
  empty=$(head -c 1024 /dev/zero | limited "$engine" import - 2>"$sound/error" | tail -n 1)
  case $empty in sha256:*) ;; *) unsound=$(trouble "\`$engine import\` failed"); empty=''; return 1 ;; esac
  starts host || { unsound=$(trouble "\`$engine run\` failed"); return 1; }
  [ "$1" = network ] || return 0
  limited "$engine" network create "$name-check" >/dev/null 2>"$sound/error" ||
    { unsound=$(trouble "\`$engine network create\` failed"); return 1; }
  starts "$name-check"
  connects=$?
  limited "$engine" network rm "$name-check" >/dev/null 2>&1
  [ "$connects" = 0 ] || { unsound=$(trouble "\`$engine run\` with a network failed"); return 1; }
}
