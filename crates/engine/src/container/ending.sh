# Ends scripts of Greenroom's own on an instance. For any POSIX shell, as who runs the engine.

# Ends the script that has this directory in memory, and removes the directory. What another account has made is not touched.
end_script() {
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return 0
  pid=
  { read -r pid <"$1/script"; } 2>/dev/null
  case $pid in
    '' | *[!0-9]*) ;;
    *)
      kill "$pid" 2>/dev/null
      tries=0
      while [ -d "$1" ] && kill -0 "$pid" 2>/dev/null && [ $((tries += 1)) -lt 40 ]; do
        sleep 0.05 2>/dev/null || sleep 1
      done
      [ ! -d "$1" ] || kill -KILL "$pid" 2>/dev/null
      ;;
  esac
  rm -rf "$1"
}

# Ends the keeper's pulls on an instance that a job has just got: no job sees their passwords.
end_pulls() {
  set +f
  for old in /run/greenroom.*greenroom-pull-* /dev/shm/greenroom.*greenroom-pull-* /tmp/greenroom.*greenroom-pull-*; do
    [ "$old" = "${work-}" ] || end_script "$old"
  done
  set -f
}
