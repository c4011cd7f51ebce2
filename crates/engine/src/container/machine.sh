# What containers take over from the machine: its name, the MTU of its network, its name servers. For any POSIX shell.
# Set above: mtu (the pool's, or empty), dns (empty: the pool names no server), and the engine's own functions add_name,
# reaches and forward.

# Options for a container in the machine's network, in `named`: its libraries find the machine's own name in a hosts file only.
own_name() {
  named='' host=''
  { read -r host </proc/sys/kernel/hostname; } 2>/dev/null
  case $host in -* | *[!0-9A-Za-z._-]*) host='' ;; esac
  while read -r address names || [ -n "$address" ]; do
    case "$address ${names%%#*} " in
      '#'*) ;;
      *[[:blank:]]"$host"[[:blank:]]*) host='' ;;
    esac
  done 2>/dev/null </etc/hosts
  add_name
}

# The MTU of the machine's default route, in `mtu`; empty if there is none. The route of the lowest metric counts. `inner`: what
# a Docker daemon in a container has to be told.
find_mtu() {
  inner=$mtu
  [ -z "$mtu" ] || return 0
  device='' best='' before=''
  while read -r at to _ _ _ _ metric mask _; do
    [ "$to$mask" = 0000000000000000 ] || continue
    [ -n "$best" ] && [ "$metric" -ge "$best" ] || best=$metric device=$at
  done 2>/dev/null </proc/net/route
  [ -n "$device" ] || return 0
  for word in $(ip -o link show dev "$device" 2>/dev/null; ip -o -4 route show default dev "$device" 2>/dev/null); do
    case $before,$word in
      mtu,lock) continue ;;
      mtu,*[!0-9]*) ;;
      mtu,*) [ -n "$mtu" ] && [ "$mtu" -le "$word" ] || mtu=$word ;;
    esac
    before=$word
  done
  [ -n "$mtu" ] || { read -r mtu <"/sys/class/net/${device%%:*}/mtu"; } 2>/dev/null
  [ "${mtu:-1500}" -ge 1500 ] || inner=$mtu
}

# The name servers of a file that containers with a network of their own reach, in `servers`, and the others, in `own`. `first`:
# the one that the machine asks first.
servers_in() {
  servers='' own='' first=''
  while read -r word server _ || [ -n "$word" ]; do
    [ "$word" != nameserver ] || first=${first:-$server}
    case $word,$server in
      nameserver,*[!0-9.]*) own="$own $server" ;;
      nameserver,*.*) if reaches "$server"; then servers="$servers $server"; else own="$own $server"; fi ;;
    esac
  done 2>/dev/null <"$1"
}

# Options for such containers, in `resolvers`. Where they reach no server of the machine, the engine would choose public ones,
# and where the first one is the machine's own, the next ones may not know internal names. Programs that answer on the machine's
# loopback interface write their own servers into files.
find_servers() {
  resolvers=''
  [ -z "$dns" ] || return 0
  servers_in /etc/resolv.conf
  [ -n "$own" ] || return 0
  case $first in 127.* | ::1) ;; *) [ -z "$servers" ] || return 0 ;; esac
  machines=$own
  forward
  [ -z "$resolvers" ] || return 0
  for file in /run/systemd/resolve/resolv.conf /run/NetworkManager/no-stub-resolv.conf /run/dnsmasq/resolv.conf; do
    servers_in "$file"
    [ -z "$servers" ] || break
  done
  [ -n "$servers" ] || report "unreached$machines"
  for server in $servers; do resolvers="$resolvers --dns $server"; done
}
