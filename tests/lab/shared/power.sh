#!/bin/sh
# Replaces shutdown, poweroff, halt, reboot, systemctl and systemd-run inside an instance.
#
# Stops the instance, now or later; `systemctl` does nothing else, and `systemd-run --on-active=TIME COMMAND…` waits.
set -eu

off() {
  : >/run/powered-off
  # Before sshd runs, process 1 checks for the mark when the script has ended.
  kill "$(cat /run/sshd.pid 2>/dev/null)" 2>/dev/null || kill -KILL -1
}

# later SECONDS COMMAND…: in a session of its own, so that it outlives its caller.
later() {
  setsid sh -c 'sleep "$1"; shift; exec "$@"' later "$@" </dev/null >/dev/null 2>&1 &
}

# 90, 90s, 5min, 5m, 2h: in seconds.
seconds() {
  case $1 in
    *min) echo $((${1%min} * 60)) ;;
    *ms) echo 1 ;;
    *m) echo $((${1%m} * 60)) ;;
    *h) echo $((${1%h} * 3600)) ;;
    *s) echo "${1%s}" ;;
    *) echo "$1" ;;
  esac
}

case ${0##*/} in
  poweroff | halt) off ;;
  reboot) echo "the lab's instances cannot reboot" >&2; exit 1 ;;
  shutdown)
    for word; do
      case $word in
        -c) exit 0 ;;
        -r) echo "the lab's instances cannot reboot" >&2; exit 1 ;;
        now) off ;;
        +*) later $((${word#+} * 60)) "$0" now ;;
        -*) ;;
        *) break ;;
      esac
    done
    ;;
  systemctl)
    for word; do
      case $word in
        poweroff | halt) off ;;
        reboot) echo "the lab's instances cannot reboot" >&2; exit 1 ;;
        is-system-running) echo running ;;
      esac
    done
    ;;
  systemd-run)
    wait=0
    while [ $# -gt 0 ]; do
      case $1 in
        --on-active=* | --on-boot=*) wait=$(seconds "${1#*=}") ;;
        --on-active | --on-boot) wait=$(seconds "$2"); shift ;;
        --unit | -u | --property | -p | --description) shift ;;
        -*) ;;
        *) break ;;
      esac
      shift
    done
    later "$wait" "$@"
    ;;
esac
