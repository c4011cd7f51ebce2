# What jobs in containers need of this host, without root: a line for each fact, a word and its value. Nothing of it stays.
fact() { printf '%s %s\n' "$1" "$(printf %s "$2" | tr '\n' ' ' | cut -c1-300)"; }
quietly() { "$@" >"$said" 2>&1 </dev/null; }
why() { grep '^Error' "$said" | tail -n 1 | grep . || tail -n 1 "$said"; }
has() { command -v "$1" >/dev/null; }
ids() { grep -s -e "^$name:" -e "^$(id -u):" "$1" | { while IFS=: read -r x x n; do [ "$n" -lt 65536 ] || exit 0; done; exit 1; }; }

need() {
  for pair in podman:podman crun:crun newuidmap:uidmap newgidmap:uidmap iptables:iptables flock:util-linux; do
    has "${pair%:*}" || fact missing "\`${pair%:*}\` (package ${pair#*:})"
  done
  has slirp4netns || has pasta || fact missing "\`slirp4netns\` (package slirp4netns)"
  ids /etc/subuid && ids /etc/subgid ||
    fact missing "65536 subordinate ids of \`$name\` in /etc/subuid and /etc/subgid (\`usermod --add-subuids\`, \`--add-subgids\`)"
  [ -w /dev/net/tun ] || fact missing "/dev/net/tun that \`$name\` may write to"
  [ "$(cat /proc/sys/user/max_user_namespaces)" != 0 ] || fact missing "user namespaces (user.max_user_namespaces)"
}

# A container of this host's own shell: whether the engine works, without any registry.
image=localhost/greenroom-doctor
# shellcheck disable=SC2046 # words
import() { tar -chf - /bin/sh $(ldd /bin/sh | grep -o '/[^ )]*') 2>/dev/null | podman import - $image; }
starts() { quietly podman run --rm --cgroups=disabled --log-driver none --network "$1" $image /bin/sh -c 'exit 0'; }
try() {
  quietly podman info --format '{{.Store.GraphDriverName}}' || { fact broken "$(why)"; return; }
  fact driver "$(tail -n 1 "$said")"
  quietly import && starts host || { fact broken "$(why)"; return; }
  quietly podman network create --disable-dns greenroom-doctor && starts greenroom-doctor || fact network-broken "$(why)"
  quietly podman network rm --force greenroom-doctor
  quietly podman rmi --force $image
}

export LC_ALL=C
name=$(id -un) said=$d/doctor
trap 'rm -f "$said"' EXIT
need
! has podman || try
fact over yes
