# Prepares the containers of a job as who runs the engine: pulls images, starts services, creates the job's container.
# For any POSIX shell. Each line on standard output is a report. A container's number counts from 0, the job's own.
# Set above: name, engine, shared (the engine's file of the job's container is there), last, pull_within, wait_within, most,
# rootless, debug, closed, own_network and only_pulls (empty: no), and the functions write_files, pull_each, may_pass, explains, share_all,
# ports, create, recent, stamp, make_room, own_name, find_mtu, find_servers, sound, end_pulls. The engine's own: facts, log_path, and the
# functions ready, mirrored, fetch, network, started, last_lines.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
unset IFS
# Containers of any user read what it makes. What others must not read has a mask of its own.
umask 022
set -f

report() { printf '%s\n' "$*" || exit 1; }

# The engine's error, on one line.
message() {
  text=$(sed -n '/^Error: failed to start containers/d; /^Error/,$p' "$1" 2>/dev/null)
  [ -n "$text" ] || text=$(tail -n 3 "$1" 2>/dev/null)
  printf '%s' "$text" | tail -c 1500 | tr '\n\r\t' '   '
}

# An engine's text may quote a job, an image or a registry. Whether the engine works shows a container of Greenroom's own:
# try_engine host, or try_engine network.
try_engine() { sound "$1" || { report "unsound $1 $unsound"; exit 1; }; }

broken() {
  if [ "$last" = 0 ]; then try_engine host; else try_engine network; fi
  report "broken $1 $2"
  exit 1
}

# A directory whose files never reach a disk.
memory() {
  for place in /run /dev/shm /tmp; do
    [ -w "$place" ] && [ "$(stat -f -c %T "$place" 2>/dev/null)" = tmpfs ] && { echo "$place"; return; }
  done
  return 1
}

clear() {
  trap - EXIT
  [ -z "$children$watcher" ] || kill $children $watcher 2>/dev/null
  rm -rf "$work" "$big"
}

# Makes a directory that the guest and the containers share.
share() {
  [ -d "$1" ] || { mkdir -p "$1" && chmod 777 "$1" &&
    { [ -n "$rootless" ] || chown "${SUDO_UID:-0}:${SUDO_GID:-0}" "$1"; }; } ||
    broken engine "cannot create $1"
}

# What is known of an image that is there; true if there is one for this job. Before a pull, another platform's is none.
image() {
  "$engine" image inspect --format "$facts" "$2" >"$work/$1.image" 2>/dev/null || return 1
  { read -r id; read -r built; read -r ports; read -r known; } <"$work/$1.image"
  echo "$id" >"$work/$1.id"
  stamp "$id"
  echo "$ports" >"$work/$1.ports"
  wanted=$machine
  case $platform in */*) wanted=${platform#*/} wanted=${wanted%%/*} ;; esac
  case $wanted,$built in
    *, | "$built,$built" | amd64,386 | arm64,arm) ;;
    *)
      [ "$policy" = never ] || [ "$tried" = yes ] || return 1
      report "foreign $1 $built $wanted"
      exit 1
      ;;
  esac
  report "image $1 $known"
}

# True if the image of a pull is there, under its own name or its mirror's.
present() {
  all_have "$reference" && return
  mirror=$(mirrored "$number")
  [ -n "$mirror" ] && all_have "$mirror"
}

# The same for one name of the image, and all containers of the pull.
all_have() {
  for container in "$number" $others; do image "$container" "$1" || return; done
}

# Sleeps, and can be stopped meanwhile.
pause() { sleep "$1" >/dev/null 2>&1 & client=$!; wait "$client"; }

# A pull lasts too long: what the engine has met by now may be the reason.
give_up() {
  trap - TERM
  [ -z "$client" ] || kill "$client" 2>/dev/null
  [ ! -s "$work/$number.error" ] || report "failed $number $policy $try $(message "$work/$number.error")"
  exit 1
}

# Pulls an image once for all its containers: pull NUMBERS IMAGE PLATFORM POLICY...
pull() {
  number=${1%% *} others=${1#"${1%% *}"} reference=$2 platform=$3 client='' try=1 tried=no
  shift 3
  trap give_up TERM
  for policy in "$@"; do
    case $policy in
      always) ;;
      *) present && exit 0 ;;
    esac
    if [ "$policy" = never ]; then report "failed $number never 1 absent"; continue; fi
    # A registry that has just failed is not asked again by the next policy.
    [ "$tried" = no ] || continue
    tried=yes
    for try in 1 2 3; do
      report "pulling $number $policy $try"
      fetch "$number" "$reference" "$platform" && present && exit 0
      text=$(message "$work/$number.error")
      report "failed $number $policy $try $text"
      explains "$text" || touch "$work/unexplained"
      may_pass "$text" && [ "$try" -lt 3 ] || break
      pause $((try * 3))
    done
  done
  exit 1
}

# Tells how much has come, and ends pulls that last too long. A report without a reader ends the script.
watch() {
  trap '' PIPE
  second=0
  while sleep 1 >/dev/null 2>&1; do
    second=$((second + 1))
    if [ "$second" -ge "$pull_within" ]; then report late; kill $children 2>/dev/null; exit; fi
    if [ $((second % 5)) -ne 0 ]; then
      printf '\n' || { kill $$; exit; }
      continue
    fi
    number=0
    while [ "$number" -le "$last" ]; do
      size=$(du -sk "$big/$number" 2>/dev/null) && size=${size%%[!0-9]*} && [ "$size" -gt 99 ] &&
        report "bytes $number $size"
      number=$((number + 1))
    done
  done
}

pull_all() {
  pull_each
  watch & watcher=$!
  failed=
  for child in $children; do wait "$child" || failed=1; done
  children=
  kill "$watcher" 2>/dev/null
  watcher=''
  rm -rf "$big" "$work/secret"
  [ -n "$failed" ] || return 0
  [ ! -e "$work/unexplained" ] || try_engine host
  exit 1
}

# True if one of these ports is open for others in the network of a process. Nothing is sent there.
listens() {
  process=$1
  shift
  for table in "/proc/$process/net/tcp" "/proc/$process/net/tcp6"; do
    [ -r "$table" ] || continue
    while read -r _ at _ state _; do
      [ "$state" = 0A ] || continue
      case ${at%:*} in
        ??????7F | 0000000000000000FFFF0000??????7F | 00000000000000000000000001000000) continue ;;
      esac
      for port in "$@"; do [ "${at##*:}" = "$port" ] && return 0; done
    done <"$table"
  done 2>/dev/null
  return 1
}

# The last lines of a service, unless all are shown.
logs() {
  [ -z "$debug" ] || return
  last_lines "$name-$1" | tail -c 4000 | {
    while IFS= read -r line || [ -n "$line" ]; do report "log $1 $line"; done
  }
}

# Reports a service that has ended; true if it has.
ended() {
  [ ! -d "/proc/$2" ] || return 1
  report "exited $1 $("$engine" wait "$name-$1" 2>/dev/null)"
  logs "$1"
}

# Waits until a service answers on a port, ends, or takes too long.
await() {
  process=$(cat "$shared/$name-$1.pid" 2>/dev/null)
  [ -n "$process" ] || process=none
  number=$1 wanted=
  for port in $(ports "$1"); do
    case $port in
      */tcp) wanted="$wanted $(printf %04X "${port%/tcp}")" ;;
    esac
  done
  if [ -z "$wanted" ] || [ "$wait_within" = 0 ]; then
    touch "$work/$1.unwatched"
    return
  fi
  now=$(date +%s)
  until=$((now + wait_within)) next=$((now + 10))
  while :; do
    listens "$process" $wanted && { report "up $1"; return; }
    ended "$1" "$process" && return
    now=$(date +%s)
    [ "$now" -lt "$until" ] || { report "silent $1"; logs "$1"; return; }
    [ "$now" -lt "$next" ] || { report "waiting $1"; next=$((now + 10)); }
    sleep 0.1 2>/dev/null || sleep 1
  done
}

# The first three numbers of the addresses of a new network.
connect() {
  [ -n "$mtu" ] || find_mtu
  find_servers
  subnet=$(network 2>"$work/error") || broken network "$(message "$work/error")"
  case $subnet in
    *.0/24 | *.0/20 | *.0/16) net=${subnet%.0/*} ;;
    *) broken network "the engine chose the subnet $subnet" ;;
  esac
}

# Starts a service and waits for it.
serve() {
  if ! (create "$1") >/dev/null 2>"$work/$1.error" ||
    ! "$engine" start "$name-$1" >/dev/null 2>"$work/$1.error"; then
    report "unstarted $1 $(message "$work/$1.error")"
    touch "$work/unstarted"
    return
  fi
  started "$1"
  [ -z "$debug" ] || ln -sf "$("$engine" inspect --format "$log_path" "$name-$1")" "$shared/$name-$1.log"
  report "started $1"
  await "$1"
}

# Gives a sign of life while services are waited for, and shows what they write. Without a reader, it ends the script.
follow() {
  trap '' PIPE
  until [ -e "$work/over" ]; do
    sleep 1 >/dev/null 2>&1
    printf '\n' || { kill $$; exit; }
    [ -z "$debug" ] || recent
  done
}

# The number that a file of accounts in the image has for a name: number FILE NAME. A number stands for itself.
account() {
  "$engine" cp "$name:/etc/$1" - 2>/dev/null | head -c 4194304 | tar -xO 2>/dev/null | {
    while IFS=: read -r entry _ number group _ || [ -n "$entry" ]; do
      case $2 in
        *[!0-9]*) [ "$entry" = "$2" ] || continue ;;
        *) [ "$number" = "$2" ] || continue ;;
      esac
      echo "$number $group"
      break
    done
  }
}

# Reports the numbers of the container's user and group. An unknown name ends the container's start.
owner() {
  user=$("$engine" inspect --format '{{.Config.User}}' "$name" 2>"$work/error") || broken create "$(message "$work/error")"
  group=''
  case $user in *:*) group=${user#*:} user=${user%%:*} ;; esac
  case $user in '' | 0 | root) return ;; esac
  found=$(account passwd "$user")
  case $user in *[!0-9]*) user=${found% *} ;; esac
  case $group in
    '') group=${found#* } ;;
    *[!0-9]*) group=$(account group "$group") group=${group% *} ;;
  esac
  [ -z "$user" ] || report "owner $user ${group:-0}"
}

main() {
  children='' watcher='' big=/var/tmp/$name
  # No other account can make it first.
  [ -z "$rootless" ] || big=$shared/$name.pulls
  command -v "$engine" >/dev/null || broken engine "$engine is not installed"
  place=$(memory) || broken engine "none of /run, /dev/shm and /tmp is in memory"
  work=$place/greenroom.$name
  trap clear EXIT
  trap 'exit 143' HUP INT TERM PIPE
  mkdir -p -m 755 "$shared" && (umask 077 && mkdir "$work" "$work/secret") || broken engine "cannot create $work"
  echo $$ >"$work/script"
  [ -n "$only_pulls" ] || end_pulls
  ready
  machine=$(uname -m)
  case $machine in
    x86_64) machine=amd64 ;;
    aarch64) machine=arm64 ;;
    i?86) machine=386 ;;
    arm*) machine=arm ;;
  esac
  [ "$last" = 0 ] || find_mtu
  write_files
  make_room
  pull_all
  if [ -n "$only_pulls" ]; then report 'done'; return; fi
  share_all
  own_name
  # As in a network of the containers' own: users other than root listen on any port.
  [ -n "$rootless$own_network" ] || { echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start; } 2>/dev/null
  [ -z "$own_network" ] || connect
  # First of all, because it creates the volumes: containers that are created concurrently would conflict.
  (create 0) >/dev/null 2>"$work/error" || broken create "$(message "$work/error")"
  [ -z "$closed" ] || owner
  [ "$last" = 0 ] || { follow & watcher=$!; }
  number=1
  while [ "$number" -le "$last" ]; do
    serve "$number" &
    children="$children $!"
    number=$((number + 1))
  done
  for child in $children; do wait "$child"; done
  [ ! -e "$work/unstarted" ] || try_engine network
  children='' number=1
  while [ "$number" -le "$last" ]; do
    [ ! -f "$work/$number.unwatched" ] || ended "$number" "$(cat "$shared/$name-$number.pid" 2>/dev/null || echo none)"
    number=$((number + 1))
  done
  if [ -n "$watcher" ] && [ -n "$debug" ]; then
    touch "$work/over"
    wait "$watcher"
    watcher=''
    recent
  fi
  report 'done'
}
