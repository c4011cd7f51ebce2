# What jobs in containers need of this machine: a line for each fact, a word and its value. Nothing of it stays.
# Variables that stand before this text: `registries` (lines of a name and an address), `logins` (names), `auth` (a
# config.json), `ca` (certificates).

fact() { printf '%s %s\n' "$1" "$(printf %s "$2" | tr '\n' ' ' | cut -c1-300)"; }
first() { head -n 1 "$dir/said"; }
last() { tail -n 1 "$dir/said"; }
quietly() { "$@" >"$dir/said" 2>&1 </dev/null; }

# A container of this machine's own shell: whether the engine works, without any registry.
image=localhost/greenroom-doctor
import() { tar -chf - /bin/sh $(ldd /bin/sh | grep -o '/[^ )]*') 2>/dev/null | podman import - $image; }
starts() { quietly podman run --rm --log-driver none --network "$1" $image /bin/sh -c 'exit 0'; }
try() {
    quietly import && starts host || { fact broken "$(last)"; return; }
    quietly podman network create --disable-dns greenroom-doctor && starts greenroom-doctor ||
        fact network-broken "$(last)"
    quietly podman network rm --force greenroom-doctor
    quietly podman rmi --force $image
}

engine() {
    version=$(podman --version 2>/dev/null) || return
    fact engine "${version#podman version }"
    quietly podman info --format '{{.Host.OCIRuntime.Name}} {{.Store.GraphDriverName}} {{.Store.GraphRoot}}' ||
        { fact broken "$(last)"; return; }
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

registries() {
    while read -r name address; do
        answers "$address" && continue
        fact unreachable "$name: $(first)"
        silent="$silent $name "
    done <<END
$registries
END
}

# Podman tries the password that it finds in the file; without a terminal it cannot ask for another.
logins() {
    printf %s "$auth" >"$dir/auth"
    for name in $logins; do
        case $silent in *" ${name%%/*} "*) continue ;; esac
        quietly podman login --authfile "$dir/auth" --cert-dir "$dir/certificates" "$name" && continue
        if grep -q 'credentials are invalid' "$dir/said"; then why='wrong user name or password'; else why=$(last); fi
        fact denied "$name: $why"
    done
}

main() {
    fact clock "$(date +%s)"
    fact cgroups "$(stat -f -c %T /sys/fs/cgroup)"
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
