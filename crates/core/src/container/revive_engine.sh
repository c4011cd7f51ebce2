# Makes an engine of the account of jobs usable after something else than the engine has killed its processes, such as the end of
# a session. Podman takes its containers for running then, and each call fails. Without what a boot of the host removes, the
# containers have ended.
# Set above: d, the engine's directory.
lost() { v=; { read -r v <"$d/libpod/tmp/pause.pid"; } 2>/dev/null; [ -n "$v" ] && [ ! -d "/proc/$v" ]; };
if lost; then ( flock 9; lost || exit; set +f;
  for f in "$d"/containers/*/*/userdata/conmon.pid; do v=; { read -r v <"$f"; } 2>/dev/null;
    [ -z "$v" ] || [ ! -d "/proc/$v" ] || exit; done;
  rm -rf "$d/libpod" "$d/containers" "$d/netns" "$d/crun" "/dev/shm/libpod_rootless_lock_$(id -u)";
  # The first call begins the process of Podman anew, which must not hold the streams of a stage.
  podman ps </dev/null >/dev/null 2>&1 9>&- ) 9>>"$d/lock"; fi;
