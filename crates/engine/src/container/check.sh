# Prints what the check of sound.sh finds on the keeper's call, or that a container has run since its last start, which says enough.
# Set above: what sound.sh needs; network (host, or network: one of its own, too); started (a container, or empty), and shared, the
# directory of the engine's files.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C

# Podman's file with the process of a container goes before each start. Docker keeps the error of a start that failed.
has_run() {
  case $engine in
  docker)
    case $(limited docker inspect --format '{{.State.StartedAt}}{{.State.Error}}' "$started" 2>/dev/null) in
    0001*) return 1 ;;
    *Z) ;;
    *) return 1 ;;
    esac
    ;;
  *) [ -s "$shared/$started.pid" ] ;;
  esac
}

check() {
  if [ -n "$started" ] && has_run; then
    echo ran
  elif sound "$network"; then
    echo sound
  else
    echo "unsound $unsound"
  fi
}
check </dev/null
