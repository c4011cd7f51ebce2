# What jobs in containers need of this machine: a line for each fact, a word and its value. Nothing of it stays.
# Variables that stand before this text: `program` (podman or docker), `registries` (lines of a name and an address),
# `logins` (names), `auth` (a config.json), `ca` (certificates), `limit` (the option for processes), `dns` (empty: the pool
# names no name server); and the functions of what containers take over from the machine.

fact() { printf '%s %s\n' "$1" "$(printf %s "$2" | tr '\n' ' ' | cut -c1-300)"; }
first() { head -n 1 "$dir/said"; }
last() { tail -n 1 "$dir/said"; }
quietly() { "$@" >"$dir/said" 2>&1 </dev/null; }

# A container of this machine's own shell: whether the engine works, without any registry.
image=localhost/greenroom-doctor
# shellcheck disable=SC2046 # words
import() { tar -chf - /bin/sh $(ldd /bin/sh | grep -o '/[^ )]*') 2>/dev/null | $program import - $image; }
starts() { quietly $program run --rm --log-driver none --network "$1" $image /bin/sh -c 'exit 0'; }
# The smallest limit of processes of a container's control group and those above.
LIMITS='least=max
while IFS=: read -r number kinds path; do
    case $number,$kinds in
        0,) dir=/sys/fs/cgroup ;;
        *,pids) dir=/sys/fs/cgroup/pids ;;
        *) continue ;;
    esac
    while :; do
        { read -r max <"$dir$path/pids.max"; } 2>/dev/null || max=max
        [ "$max" = max ] || { [ "$least" != max ] && [ "$least" -le "$max" ]; } || least=$max
        [ -n "$path" ] || break
        path=${path%/*}
    done
done </proc/self/cgroup
echo "$least"'
limits() {
    quietly $program run --rm --log-driver none --network host $limit --cgroupns=host $image /bin/sh -c "$LIMITS" || return
    [ "$(last)" = max ] || fact processes "$(last)"
}
# The engine's own: see the script of `prepare`.
reaches() { [ $program = docker ] || case $1 in 127.*) return 1 ;; esac; }
forward() { :; }
report() { fact "${1%% *}" "${1#* }"; }
try() {
    quietly import && starts host || { fact broken "$(last)"; return; }
    limits
    find_servers
    quietly $program network create $options greenroom-doctor && starts greenroom-doctor ||
        fact network-broken "$(last)"
    quietly $program network rm greenroom-doctor
    quietly $program rmi --force $image
}

# A daemon may still be starting.
daemon() {
    tries=0
    until quietly docker version --format '{{.Server.Version}}'; do
        tries=$((tries + 1))
        [ "$tries" -lt 20 ] || return
        sleep 1
    done
    insecure=" $(docker info --format '{{range $name, $it := .RegistryConfig.IndexConfigs}}{{if not $it.Secure}}{{$name}} {{end}}{{end}}' 2>/dev/null)"
}

engine() {
    version=$($program --version 2>/dev/null) || return
    version=${version#* version }
    fact engine "${version%%,*}"
    case $program in
        podman)
            options=--disable-dns
            quietly podman info --format '{{.Host.OCIRuntime.Name}} {{.Store.GraphDriverName}} {{.Store.GraphRoot}}'
            ;;
        docker)
            options=
            daemon && quietly docker info --format '{{.DefaultRuntime}} {{.Driver}} {{.DockerRootDir}}'
            ;;
    esac || { fact broken "$(last)"; [ $program = podman ] || version=; return; }
    read -r runtime driver root <"$dir/said"
    fact runtime "$runtime"
    fact driver "$driver"
    fact free-kib "$(df -Pk "$root" | awk 'END { print $4 }')"
    try
}

# Any answer counts: a registry asks strangers for a password.
answers() {
    if command -v curl >/dev/null; then
        quietly curl --silent --show-error --max-time 10 --output /dev/null --cacert "$dir/bundle" "$1"
        return
    fi
    to=${1#*://}
    to=${to%%/*}
    port=${to##*:}
    [ "$port" != "$to" ] || case $1 in https:*) port=443 ;; *) port=80 ;; esac
    quietly timeout 10 bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash "${to%:*}" "$port"
}

# True if Docker's daemon does not talk to a registry without TLS.
denied() {
    [ -n "$insecure" ] || return
    case $1 in http://127.* | http://localhost[:/]* | https:*) return 1 ;; esac
    host=${1#http://}
    host=${host%%/*}
    case $insecure in *" $host "*) return 1 ;; esac
    fact unreachable "$host: Docker needs it in \`insecure-registries\` of /etc/docker/daemon.json, because it has no TLS"
}

registries() {
    while read -r name address; do
        denied "$address" && continue
        answers "$address" && continue
        fact unreachable "$name: $(first)"
        silent="$silent $name "
    done <<END
$registries
END
}

# The engine tries the password that it finds in the file; without a terminal it cannot ask for another.
login() {
    [ $program = docker ] || {
        quietly podman login --authfile "$dir/config.json" --cert-dir "$dir/certificates" "$1"
        return
    }
    # The daemon reads the certificates.
    known=/etc/docker/certs.d/${1%%/*}
    mkdir -p "$known" && printf %s "$ca" >"$known/greenroom-doctor.crt"
    quietly docker --config "$dir" login "${1%%/*}"
    ended=$?
    rm "$known/greenroom-doctor.crt"
    rmdir "$known" /etc/docker/certs.d 2>/dev/null
    return $ended
}

logins() {
    printf %s "$auth" >"$dir/config.json"
    for name in $logins; do
        case $silent in *" ${name%%/*} "*) continue ;; esac
        login "$name" && continue
        if grep -q 'credentials are invalid\|nauthorized' "$dir/said"; then
            why='wrong user name or password'
        else
            why=$(sed -n 's/.*did not succeed, error: //p' "$dir/said" | grep . || last)
        fi
        fact denied "$name: $why"
    done
}

main() {
    fact clock "$(date +%s)"
    # Docker takes both kinds.
    [ $program = docker ] || fact cgroups "$(stat -f -c %T /sys/fs/cgroup)"
    command -v iptables >/dev/null || fact missing iptables
    for module in overlay veth bridge nf_tables nft_compat xt_comment xt_conntrack xt_mark xt_nat xt_MASQUERADE; do
        [ -d "/sys/module/$module" ] || modprobe -n -q "$module" || fact missing "the module $module"
    done
    engine
    [ -z "$registries" ] || registries
    [ -z "$version" ] || logins
}

export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
umask 077
dir=$(mktemp -d /run/greenroom-doctor.XXXXXX) || exit
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/certificates"
printf %s "$ca" >"$dir/certificates/ca.crt"
cat /etc/ssl/certs/ca-certificates.crt "$dir/certificates/ca.crt" >"$dir/bundle" 2>/dev/null
main
