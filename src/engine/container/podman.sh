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

# Creates the job's network, without a name server; its subnet. The engine's error goes to standard error.
network() {
  podman network create --disable-dns "$name" >/dev/null &&
    podman network inspect --format '{{range .Subnets}}{{.Subnet}}{{end}}' "$name"
}

# A service has started: its process is in a file already.
started() { :; }

# What a container wrote last: last_lines NAME.
last_lines() { podman logs --tail 20 "$1" 2>&1; }
