# Makes the directory of an engine of the account of jobs, and the program that all later calls find instead of the engine's own.
# Set above: d, the directory.
mkdir -p "$d/bin" && chmod 700 "$d" && ( flock 9;
  if p=$(command -v podman) && [ "$p" != "$d/bin/podman" ]; then
    # A login of the account that has used the engine since the last cleaning left its own paths in the engine's database, which
    # may be gone by now. The database has no images.
    o="${XDG_DATA_HOME:-$HOME/.local/share}/containers/storage";
    pgrep -u "$(id -u)" -x conmon >/dev/null || rm -rf "$o/libpod" "$o/db.sql";
    printf '#!/bin/sh\nexec %s --cgroup-manager=cgroupfs "$@"\n' "$p" >"$d/bin/podman.$$" &&
      chmod 755 "$d/bin/podman.$$" && mv "$d/bin/podman.$$" "$d/bin/podman"; fi ) 9>>"$d/lock";
