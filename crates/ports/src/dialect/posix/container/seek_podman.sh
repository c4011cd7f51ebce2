# Finds a container of Podman, for functions.sh: the file has the number of its first process, and its monitor, conmon, names the
# file in its arguments. A process that does so itself is still the runtime.
seek() {
  c=; read -r c <"$g";
  [ -n "$c" ] && live $c && grep -qsF -- "$g" /proc/$i/cmdline &&
    ! grep -qsF -- "$g" /proc/$c/cmdline && m=$i || c=;
};
