# Docker, for prepare.sh.
facts='{{.ID}}
{{.Architecture}}
{{range $port, $_ := .Config.ExposedPorts}}{{$port}} {{end}}
[{{json .Size}},{{json .Config.User}},{{json .Config.Entrypoint}},{{range $at, $name := .RepoDigests}}{{if not $at}}{{json $name}}{{end}}{{else}}null{{end}}]'
log_path='{{.LogPath}}'

# Waits for the daemon, which may still be starting.
ready() {
  init='' tries=0
  until docker version --format '{{.Server.Version}}' >/dev/null 2>"$work/error"; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || broken engine "$(message "$work/error")"
    sleep 1
  done
}

# Pulls an image: fetch NUMBER REFERENCE PLATFORM. Sets `client` meanwhile. Docker knows no mirrors for one pull, so the
# image gets the name of its registry afterwards, unless the name is a digest.
fetch() {
  mirror=$(mirrored "$1")
  if [ -n "$mirror" ]; then
    load "$1" "$mirror" "$3" && { docker tag "$mirror" "$2" 2>/dev/null; return 0; }
    text=$(message "$work/$1.error")
    case $text in
      *"manifest unknown"* | *"not found"*) ;;
      *)
        report "failed $1 $policy $try mirror ${mirror%%/*}: $text"
        report "pulling $1 $policy 2"
        ;;
    esac
  fi
  load "$1" "$2" "$3"
}

load() {
  docker --config "$work/secret/$1" pull --quiet ${3:+--platform "$3"} "$2" >/dev/null 2>"$work/$1.error" &
  client=$!
  wait "$client"
}

# With `--add-host`, Docker drops the machine's hosts file: the container gets a file of its own instead.
add_name() {
  [ -n "$host$added" ] || return 0
  {
    cat /etc/hosts 2>/dev/null
    echo
    [ -z "$host" ] || echo "127.0.1.1 $host"
    for entry in $added; do echo "${entry#*:} ${entry%%:*}"; done
  } >"$shared/$name.hosts"
  named="--volume $shared/$name.hosts:/etc/hosts"
}

# Docker's name server in each network asks the machine's, also on its loopback interface.
reaches() { :; }
forward() { :; }

# Creates the job's network; its subnet. Only in a subnet that is asked for may containers have chosen addresses: the
# engine finds a free one.
network() {
  tries=0
  set -- ${mtu:+--opt "com.docker.network.driver.mtu=$mtu"}
  while :; do
    docker network create "$name" >/dev/null || return
    subnet=$(docker network inspect --format '{{range .IPAM.Config}}{{.Subnet}} {{end}}' "$name") || return
    subnet=${subnet%% *}
    docker network rm "$name" >/dev/null || return
    docker network create --subnet "$subnet" "$@" "$name" >/dev/null && break
    # Another job's network may have it by now.
    tries=$((tries + 1))
    [ "$tries" -lt 5 ] || return
  done
  echo "$subnet"
}

# A service has started.
started() {
  docker inspect --format '{{.State.Pid}}' "$name-$1" 2>/dev/null | sed 's/^0$/none/' >"$shared/$name-$1.pid"
}

# What a container wrote last: last_lines NAME. Docker reads standard output and standard error concurrently, so its record
# may have the last line of one before all lines of the other. Each comes with its own last lines.
last_lines() {
  docker logs "$1" 2>/dev/null | tail -n 20 | tail -c 2000
  docker logs "$1" 2>&1 >/dev/null | tail -n 20 | tail -c 2000
}
