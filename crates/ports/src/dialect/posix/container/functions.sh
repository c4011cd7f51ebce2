# Finds the processes of a container. `seek` sets `c` to its first process and `m` to its monitor; without that process, `c` is
# empty. `inside PID` is true for the container's processes, `live PID` for all that are not zombies; `live` sets `i` to the
# parent and `a` to the time of birth.
# Set above: g, the engine's file, which has the number of the container's first process (Podman) or its own (Docker).
# SEEK: the function of the engine, from seek_podman.sh or seek_docker.sh.
c=; m=;
live() {
  x=; while read -r l; do x=$l; done </proc/$1/stat; set -- ${x##*) }; i=$2; a=${20};
  case $1 in ""|Z|X) return 1;; esac; };
${SEEK}
# shellcheck disable=SC3013 # each /bin/sh of a machine with containers knows it
inside() { [ -n "$c" ] && [ /proc/$1/ns/pid -ef /proc/$c/ns/pid ]; };
