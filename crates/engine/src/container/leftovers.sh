# Removes what jobs have left with the engine of an instance that stays in use, and records what was there before the first
# job. For any POSIX shell, as who runs the engine.
# Set above: engine, shared, kept (the names of the containers of present jobs), alone (yes: no job is there, so that
# whatever is new was a job's; else only what has a name of Greenroom's), and the function end_script.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
unset IFS
brought=$shared/brought

fail() { echo "$*"; exit 1; }

# The first line of the engine's error.
message() { printf '%s' "$1" | head -n 3 | tr '\n\r\t' '   '; }

# Identifier and name of all things of a kind.
list() {
  case $1 in
    pod) [ "$engine" != podman ] || podman pod ps --no-trunc --format '{{.ID}} {{.Name}}' ;;
    container)
      if [ "$engine" = podman ]; then podman ps --all --external --no-trunc --format '{{.ID}} {{.Names}}'
      else docker ps --all --no-trunc --format '{{.ID}} {{.Names}}'; fi ;;
    *) "$engine" "$1" ls --format '{{.Name}} {{.Name}}' ;;
  esac
}

# True if a name is Greenroom's, and not of a present job.
is_left() {
  case $1 in
    greenroom-* | rootless-greenroom-*) ;;
    *) return 1 ;;
  esac
  for present in $kept; do
    case $1 in "$present" | "$present"[-.]*) return 1 ;; esac
  done
}

# What has to go of a kind, by its identifiers.
left() {
  found=$(list "$1" 2>&1) || { echo "! cannot list what jobs have left ($1): $(message "$found")"; return; }
  printf '%s\n' "$found" | while read -r id name _; do
    [ -n "$id" ] || continue
    if [ -n "$alone" ]; then
      ! grep -qxF -e "$1 $id" "$brought" || continue
    else
      is_left "$name" || continue
    fi
    echo "$id"
  done
}

# Removes one thing of a kind, at once.
remove() {
  case $engine,$1 in
    podman,pod) podman pod rm --force "$2" ;;
    podman,container) podman rm --force --time 0 --volumes "$2" ;;
    docker,container) docker rm --force --volumes "$2" ;;
    *,volume) "$engine" volume rm --force "$2" ;;
    *) "$engine" network rm "$2" ;;
  esac
}

# Ends the scripts of jobs that are gone, and removes their files.
end_scripts() {
  for work in /run/greenroom.* /dev/shm/greenroom.* /tmp/greenroom.*; do
    ! is_left "${work#*/greenroom.}" || end_script "$work"
  done
  for file in "$shared"/greenroom-* "$shared"/rootless-greenroom-* /var/tmp/greenroom-*; do
    [ ! -e "$file" ] || [ ! -O "$file" ] || ! is_left "${file##*/}" || rm -rf "$file"
  done
}

remove_all() {
  end_scripts
  command -v "$engine" >/dev/null || return 0
  [ -z "$alone" ] || [ -r "$brought" ] ||
    fail "$brought is missing: it is not known what $engine had before the first job"
  for round in 1 2 3; do
    rest='' errors=''
    for kind in pod container network volume; do
      for id in $(left "$kind"); do
        case $id in '!') fail "$(left "$kind")" ;; esac
        rest=1
        error=$(remove "$kind" "$id" 2>&1) || errors="$kind $id: $(message "$error")"
      done
    done
    [ -n "$rest" ] || return 0
  done
  fail "$engine cannot remove what a job has left${errors:+: $errors}"
}

record() {
  command -v "$engine" >/dev/null || return 0
  mkdir -p -m 755 "$shared" || exit 1
  # A daemon may still be starting.
  tries=0
  until all=$(for kind in pod container network volume; do
    found=$(list "$kind") || exit 1
    printf '%s\n' "$found" | while read -r id _; do [ -z "$id" ] || echo "$kind $id"; done
  done); do
    [ $((tries += 1)) -lt 30 ] || fail "$engine does not answer"
    sleep 1
  done
  (umask 077 && printf '%s\n' "$all" >"$brought.new") && mv "$brought.new" "$brought"
}
