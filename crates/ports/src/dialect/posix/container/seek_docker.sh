# Finds a container of Docker, for functions.sh: the file has its number, which its monitor, the shim, has in its arguments. A
# container's own process may have any arguments, but is in another namespace. While `exec.fifo` exists, the first process waits.
seek() {
  c=; d=; read -r d <"$g"; [ -n "$d" ] || return 0;
  for j in $(grep -ls -e $d /proc/[0-9]*/cmdline); do
    j=${j#/proc/}; j=${j%/cmdline};
    # shellcheck disable=SC3013 # each /bin/sh of a machine with containers knows it
    [ /proc/$j/ns/pid -ef /proc/self/ns/pid ] && grep -qs containerd-shim /proc/$j/cmdline || continue;
    c=; read -r c </proc/$j/cwd/init.pid;
    # shellcheck disable=SC2144 # at most one matches
    [ -n "$c" ] && live $c && [ $i = $j ] && [ ! -e /run/docker/*/*/$d/exec.fifo ] || c=;
    m=$j; [ -z "$c" ] || return 0;
  done;
};
