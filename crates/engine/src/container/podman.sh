# Podman, for prepare.sh.
facts='{{.Id}}
{{.Architecture}}
{{range $port, $_ := .Config.ExposedPorts}}{{$port}} {{end}}
[{{json .Size}},{{json .User}},{{json .Config.Entrypoint}},{{json .Digest}}]'
log_path='{{.HostConfig.LogConfig.Path}}'

# The program for `--init` is not where Podman looks for it.
ready() { init=$(command -v catatonit || command -v tini) && init="--init-path $init"; }

# Another name under which an image may have come.
mirrored() { :; }

# Pulls an image: fetch NUMBER REFERENCE PLATFORM. Sets `client` meanwhile.
fetch() {
  [ ! -f "$work/registries.conf" ] || export CONTAINERS_REGISTRIES_CONF="$work/registries.conf"
  from=$2 into=$big/$1
  set -- --quiet ${3:+--platform "$3"}
  [ ! -f "$work/secret/$number.json" ] || set -- "$@" --authfile "$work/secret/$number.json"
  [ ! -d "$work/secret/ca" ] || set -- "$@" --cert-dir "$work/secret/ca"
  mkdir -p "$into"
  TMPDIR=$into podman pull "$@" "$from" >/dev/null 2>"$work/$number.error" &
  client=$!
  wait "$client"
}

# The machine's own name becomes a line before those of its hosts file.
add_name() { [ -z "$host" ] || named="--add-host $host:127.0.1.1"; }

# True if containers with a network of their own reach a name server of the machine's.
reaches() {
  case $1 in 127.*) return 1 ;; esac
}

# Where an address outside the network stands for the machine's own name servers. As root, none does. From version 5 on, Podman
# chooses it by itself.
forward() {
  [ -z "$rootless" ] || case $(podman --version) in
    *' 4.'*) resolvers='--dns 10.0.2.3' ;;
    *) resolvers=' ' ;;
  esac
}

# Creates the job's network, without a name server; its subnet. No other job's network reaches it. The engine's error goes
# to standard error.
network() {
  podman network create --disable-dns --opt isolate=true ${mtu:+--opt "mtu=$mtu"} "$name" >/dev/null &&
    podman network inspect --format '{{range .Subnets}}{{.Subnet}}{{end}}' "$name"
}

# A service has started: its process is in a file already.
started() { :; }

# What a container wrote last: last_lines NAME.
last_lines() { podman logs --tail 20 "$1" 2>&1; }
