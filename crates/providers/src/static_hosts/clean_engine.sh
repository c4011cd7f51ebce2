# Removes the containers that jobs have left in the engine of their account. Images stay. Runs as that account, on a host that
# root has cleaned and that stays with its trust domain. Argument 2: --keep-cache, if it does.
engine=$HOME/.local/share/containers/storage
if [ "$2" = --keep-cache ] && [ -d "$engine" ] && command -v podman >/dev/null; then
  for list in "$engine"/*-containers/containers.json; do
    # shellcheck disable=SC2046 # words
    [ ! -f "$list" ] || set -- "$@" $(grep -o '"id":"[0-9a-f]\{64\}"' "$list" | cut -d '"' -f 4)
  done
  mark=$1
  shift 2
  [ $# = 0 ] || podman rm --force "$@" >/dev/null 2>&1 || podman unshare rm -rf "$engine" || {
    echo "cannot remove the containers in $engine"
    exit 1
  }
  set -- "$mark"
  # The images that are there for the next job: each digest with its names.
  for list in "$engine"/*-images/images.json; do
    [ ! -f "$list" ] || grep -o '"digest":"sha256:[0-9a-f]*","names":\["[^]]*"\]' "$list" | while IFS= read -r image; do
      digest=${image#*:\"} names=${image#*\[}
      printf '%s\n' "${names%?}" | tr -d '"' | tr ',' '\n' | sed "s/^/left ${digest%%\"*} /"
    done
  done
fi
# With what keeps the engine's namespaces open; the first job begins them anew.
pause=
[ ! -f "$d/libpod/tmp/pause.pid" ] || read -r pause <"$d/libpod/tmp/pause.pid"
[ -z "$pause" ] || kill -KILL "$pause"
rm -rf "$d"
