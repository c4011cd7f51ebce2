# Images stay on this host from job to job: those that no job has used for longest go while there is little room. A file for
# each image tells when a job last used it. For any POSIX shell, as the account that runs the engine.
# Set above: min_free (in KiB), pull_within, work, and the function wanted.
used=
by_name='{{.ID}} {{.Repository}}{{if eq .Tag "<none>"}}@{{.Digest}}{{else}}:{{.Tag}}{{end}}'
stamp() { [ -z "$used" ] || touch "$used/$1" 2>/dev/null; }

room() { df -Pk "$root" | { read -r _; read -r _ _ _ room _; echo "$room"; }; }

# Prints when each image was last used, oldest first.
by_use() {
  podman image ls --no-trunc --format "$by_name" 2>/dev/null | while read -r id image; do
    id=${id#sha256:}
    printf '%s %s %s\n' "$(stat -c %Y "$used/$id" 2>/dev/null || echo 0)" "$id" "$image"
  done | sort -n -k1,1
}

make_room() {
  root=$(podman info --format '{{.Store.GraphRoot}}' 2>"$work/error") || broken engine "$(message "$work/error")"
  used=$root/greenroom
  mkdir -p "$used" 2>/dev/null
  for reference in $(wanted); do
    id=$(podman image inspect --format '{{.Id}}' "$reference" 2>/dev/null) && stamp "$id"
  done
  [ "$(room)" -lt "$min_free" ] || return 0
  now=$(date +%s)
  by_use >"$work/used"
  while read -r when id image; do
    [ "$(room)" -lt "$min_free" ] || break
    # Another job may be about to start a container from a younger one.
    [ "$when" -lt $((now - pull_within - 120)) ] || break
    [ -z "$(podman ps --all --quiet --filter "ancestor=$id" 2>/dev/null)" ] || continue
    podman rmi --force "$id" >/dev/null 2>&1 || continue
    rm -f "$used/$id"
    if [ "$when" = 0 ]; then report "removed never $image"; else report "removed $((now - when)) $image"; fi
  done <"$work/used"
}
