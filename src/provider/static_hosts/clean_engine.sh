# Removes the containers that jobs have left in the engine of their account. Images stay. Runs as that account, on a host that
# root has cleaned and that stays with its trust domain. Argument 2: --keep-cache, if it does.
engine=$HOME/.local/share/containers/storage
if [ "$2" = --keep-cache ] && [ -d "$engine" ] && command -v podman >/dev/null; then
  for list in "$engine"/*-containers/containers.json; do
    [ ! -f "$list" ] || set -- "$@" $(grep -o '"id":"[0-9a-f]\{64\}"' "$list" | cut -d '"' -f 4)
  done
  mark=$1
  shift 2
  [ $# = 0 ] || podman rm --force "$@" >/dev/null 2>&1 || podman unshare rm -rf "$engine" || {
    echo "cannot remove the containers in $engine"
    exit 1
  }
  set -- "$mark"
fi
# With what keeps the engine's namespaces open; the first job begins them anew.
pause=
[ ! -f "$d/libpod/tmp/pause.pid" ] || read -r pause <"$d/libpod/tmp/pause.pid"
[ -z "$pause" ] || kill -KILL "$pause"
rm -rf "$d"
