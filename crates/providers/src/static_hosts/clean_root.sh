# Cleans this host as root after the jobs of one account: ends its processes, removes its files, resets its home.
# For any POSIX shell, Linux and macOS. With --keep-cache the cache stays; --check only checks whether this can be done.
# Set above: account, builds, cache, keep_builds (1: builds stay with the cache), skeleton, containers (1: jobs run in them).
# Nothing else comes from outside.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
unset IFS
umask 077
set -f      # a job chooses file names: nothing expands them
killing=10  # seconds until a process that stays fails the cleaning
least=100   # MiB that must be free afterwards
waste=4290000000  # first of the user ids that nobody has

fail() { echo "$*"; exit 1; }

keep=0 keeps_builds=0 only_check=0
case ${1-} in
  '') ;;
  --keep-cache) keep=1 keeps_builds=$keep_builds ;;
  --check) only_check=1 ;;
  *) fail "the argument $1 is unknown" ;;
esac
cd / || fail "cannot enter /"
[ "$(id -u)" = 0 ] || fail "does not run as root"
uid=$(id -u "$account" 2>/dev/null) || fail "there is no account $account"
[ "$uid" -gt 0 ] || fail "refuses to clean the account of root"
# The account's name consists of plain characters: the configuration allows no others.
eval "home=~$account"
case $home in /?*) ;; *) fail "$account has no home directory" ;; esac
[ ! -L "$home" ] && [ -d "$home" ] || fail "$home, the home of $account, is not a directory"
[ -n "$(find "$home" -prune -user "$uid")" ] || fail "$home, the home of $account, does not belong to it"

# The pristine copy counts only where no job can reach it.
vault=${skeleton%/*}
[ -d "$skeleton" ] && [ ! -L "$skeleton" ] ||
  fail "there is no copy of the home in $skeleton: make it as root with install -d -m 700 $vault && cp -a $home $skeleton"
[ -n "$(find "$vault" -prune -type d -user 0 ! -perm -001 ! -perm -010)" ] ||
  fail "others than root can reach $skeleton: run chown root $vault && chmod 700 $vault"

# All ids of the account: a process or a file of a container without root has one of its subordinate ids.
ranges='' owned="-user $uid" others=''
if [ -r /etc/subuid ]; then
  while IFS=: read -r name first count; do
    [ "$first" -gt 0 ] 2>/dev/null && [ "$count" -gt 0 ] 2>/dev/null || continue
    case $name in "$account" | "$uid") ;; *) others="$others $first:$((first + count - 1)):$name"; continue ;; esac
    ranges="$ranges $first:$((first + count - 1))"
    owned="$owned -o ( -uid +$((first - 1)) -a -uid -$((first + count)) )"
  done </etc/subuid
fi

# What has an id of two accounts would go with the jobs of one of them, and a container of one could be in the other's files.
for r in $ranges; do
  last=${r#*:} first=${r%:*}
  for other in $others; do
    name=${other#*:} from=${other%%:*} name=${name#*:} to=${other#*:} to=${to%%:*}
    [ "$from" -gt "$last" ] || [ "$to" -lt "$first" ] ||
      fail "in /etc/subuid, $account and $name have the same ids ($first to $last, $from to $to): give them different ones"
  done
  while IFS=: read -r name x id x; do
    [ "$id" -lt "$first" ] 2>/dev/null || [ "$id" -gt "$last" ] 2>/dev/null ||
      fail "in /etc/subuid, $account has the id $id, which is that of the account $name: give it others"
  done </etc/passwd
done

# Ends every process of a user id, with one call to the kernel, so that none can fork meanwhile. The caller has that id
# only as its effective one: no process of the account may signal or trace it, and it may signal no process of others.
perl='$n = $ARGV[0]; ($<, $>) = ($ARGV[1], $n); exit 3 if $n < 1 || $> != $n || $< != $ARGV[1]; kill "KILL", -1'
python='import os, sys; n, o = map(int, sys.argv[1:]); n < 1 or os.setresuid(o, n, o) or os.kill(-1, 9)'
if command -v perl >/dev/null; then
  end_all() { perl -e "$perl" "$1" $((waste + $1 % 1000000)); }
elif command -v python3 >/dev/null; then
  end_all() { python3 -I -c "$python" "$1" $((waste + $1 % 1000000)); }
else
  fail "needs perl or python3, to end all processes of an account at the same moment"
fi

ours() {
  [ "$1" != "$uid" ] || return 0
  for r in $ranges; do
    [ "$1" -lt "${r%:*}" ] || [ "$1" -gt "${r#*:}" ] || return 0
  done
  return 1
}

# Sets `found` to the living processes, and `ids` to their user ids. A name in `status` has no line breaks. A process whose
# first thread has ended looks like a zombie, but has other threads.
find_processes() {
  found='' ids=" "
  if [ -r /proc/self/status ]; then
    set +f
    all=$(grep -shE '^(State|Pid|Uid|Threads):' /proc/[0-9]*/status)
    set -f
    for word in $all; do
      case $word in State: | Pid: | Uid: | Threads:) key=$word n=0; continue ;; esac
      n=$((n + 1))
      case $key$n in
        State:1) state=$word users= ;;
        Pid:1) pid=$word ;;
        Uid:*) users="$users $word" ;;
        Threads:1) case $state in [ZX]) [ "$word" -gt 1 ] || continue ;; esac; judge $users ;;
      esac
    done
  else
    all=$(ps -Axo pid=,uid=,ruid=,stat=)
    set -- $all
    while [ $# -ge 4 ]; do
      pid=$1
      case $4 in Z*) ;; *) judge "$2" "$3" ;; esac
      shift 4
    done
  fi
}

judge() {
  for u in "$@"; do
    if ours "$u"; then
      found="$found $pid"
      case $ids in *" $u "*) ;; *) ids="$ids$u " ;; esac
    fi
  done
}

# Ends what is found and looks again, until nothing is found.
slice=/sys/fs/cgroup/user.slice/user-$uid.slice
end_processes() {
  began=$(date +%s)
  while :; do
    # Where systemd keeps the account's processes together, this also ends those under any other id.
    [ ! -w "$slice/cgroup.kill" ] || echo 1 2>/dev/null >"$slice/cgroup.kill"
    end_all "$uid" || fail "cannot signal the processes of $account"
    find_processes
    [ -n "$found" ] || return 0
    for u in $ids; do [ "$u" = "$uid" ] || end_all "$u" || fail "cannot signal the processes of id $u"; done
    [ $(($(date +%s) - began)) -lt $killing ] || fail "cannot end the processes$found of $account"
    sleep 0.02 2>/dev/null || sleep 1
  done
}

# What others would start for the account, or keep for it.
forget_plans() {
  for d in /var/spool/cron/crontabs /var/spool/cron /var/spool/cron/tabs /var/at/tabs /var/cron/tabs \
    /var/lib/systemd/linger /var/mail /var/spool/mail; do
    [ ! -f "$d/$account" ] || rm -f "$d/$account" || fail "cannot remove $d/$account"
  done
}

# Where systemd keeps a journal for each account, the account can read what its processes have logged.
remove_journal() {
  for d in /var/log/journal /run/log/journal; do
    [ -d "$d" ] || continue
    # What was sent is in the files then. The journal's service replaces a removed file.
    journalctl --sync >/dev/null 2>&1
    find "$d" -xdev -type f -name 'user-[0-9]*.journal*' | while read -r f; do
      id=${f##*/user-} id=${id%%[!0-9]*}
      ! ours "$id" || rm -f "$f" || exit 1
    done || fail "cannot remove the journal of $account in $d"
  done
}

# The kernel keeps keys for an account that has no process. Only a process of the account reaches all of its keyrings: those of
# the user (-4) and of the user's sessions (-5), and the persistent one. A kernel that refuses that to root has them for no job.
perl_keys='($uid, $call) = @ARGV; ($<, $>) = ($uid, $uid); exit 3 if $< != $uid || $> != $uid;
  for (-4, -5, syscall $call, 22, -1, -2) { exit 4 if syscall($call, 7, $_) < 0 && $! == 13 }'
python_keys='import ctypes, os, sys
uid, call = map(int, sys.argv[1:])
kernel = ctypes.CDLL(None, use_errno=True).syscall
os.setresuid(uid, uid, uid)
for ring in -4, -5, kernel(call, 22, -1, -2):
    if kernel(call, 7, ring) < 0 and ctypes.get_errno() == 13: sys.exit(4)'
remove_keys() {
  [ -r /proc/keys ] || return 0
  case $(uname -m).$(getconf LONG_BIT 2>/dev/null) in
    x86_64.64 | x86_64.) call=250 ;;
    aarch64.64 | aarch64. | riscv64.64 | loongarch64.64) call=219 ;;
    x86_64.32 | i?86.*) call=288 ;;
    aarch64.32 | arm*) call=311 ;;
    ppc64*) call=271 ;;
    s390x.*) call=280 ;;
    *) return 0 ;;
  esac
  drop_keys "$uid"
  # A program with an id of a container may have had keys of its own.
  [ ! -r /proc/key-users ] || while IFS=': ' read -r id x; do
    [ "$id" = "$uid" ] || ! ours "$id" || drop_keys "$id"
  done </proc/key-users
}

drop_keys() {
  if command -v perl >/dev/null; then
    perl -e "$perl_keys" "$1" $call
  else
    python3 -I -c "$python_keys" "$1" $call
  fi </dev/null || fail "cannot remove the keys of id $1 in the kernel"
}

# System V memory, queues and semaphores are no files.
remove_ipc() {
  if [ -r /proc/sysvipc/shm ]; then
    while read -r x id x x x x x u x c x; do drop_ipc -m "$id" "$u" "$c"; done </proc/sysvipc/shm
    while read -r x id x x x x x u x c x; do drop_ipc -q "$id" "$u" "$c"; done </proc/sysvipc/msg
    while read -r x id x x u x c x; do drop_ipc -s "$id" "$u" "$c"; done </proc/sysvipc/sem
  else
    for kind in m q s; do
      ipcs -$kind 2>/dev/null | while read -r t id x x owner x; do
        [ "$t" != $kind ] || [ "$owner" != "$account" ] || ipcrm -$kind "$id"
      done
    done
  fi
}

# The first line of each list has words instead of numbers.
drop_ipc() {
  case $3$4 in *[!0-9]*) return ;; esac
  ours "$3" || ours "$4" || return 0
  ipcrm "$1" "$2" || fail "cannot remove IPC object $2 of $account"
}

# A link that a job made must not lead this shell away.
plain() {
  part=$1
  while [ -n "$part" ]; do
    [ ! -L "$part" ] || [ -n "$(find "$part" -prune -user 0)" ] || fail "$part, a part of $1, is a link of a job"
    part=${part%/*}
  done
}

# In the home everything goes, elsewhere only what belongs to the account. No link is followed, no mount is entered.
# With the cache, images stay; the account itself removes the containers between them later. Where the pristine copy has
# images, these come back instead.
store=.local/share/containers
[ "$keep$containers" = 11 ] && [ ! -e "$skeleton/$store" ] && keeps_images=1 || keeps_images=0
store=$home/$store
remove_files() {
  set --
  [ "$keep" != 1 ] || set -- ! -path "$cache" ! -path "$cache/*"
  [ $keeps_builds = 0 ] || set -- "$@" ! -path "$builds" ! -path "$builds/*"
  [ $keeps_images = 0 ] ||
    set -- "$@" ! \( -type d \( -path "$home/.local" -o -path "$home/.local/share" -o -path "$store" \) \) \
      ! -path "$store/*"
  if ! find "$home" -xdev -mindepth 1 "$@" -delete 2>/dev/null; then
    # Both directories may be mounts, and the cache may stay: the directories above them remain.
    left=$(find "$home" -xdev -mindepth 1 "$@" 2>/dev/null | while read -r f; do
      case "$builds/ $cache/ $store/" in "$f"/* | *" $f"/*) ;; *) echo "$f"; break ;; esac
    done)
    [ -z "$left" ] || fail "cannot remove $left"
  fi
  plain "$builds"
  [ "$keep" = 1 ] || plain "$cache"
  set --
  [ "$keep" = 1 ] || [ ! -d "$cache" ] || set -- "$cache/"
  [ $keeps_builds = 1 ] || [ ! -d "$builds" ] || set -- "$@" "$builds/"
  for d in /tmp /var/tmp /dev/shm /dev/mqueue /run/lock /var/crash /run/user/$uid /private/var/folders \
    /var/spool/cron /var/spool/at /var/at /var/cron; do
    [ ! -d "$d" ] || set -- "$@" "$d/"
  done
  if ! find "$@" -xdev -mindepth 1 \( $owned \) -delete 2>/dev/null; then
    left=$(find "$@" -xdev -mindepth 1 \( $owned \) 2>/dev/null | head -n 1)
    [ -z "$left" ] || fail "cannot remove $left"
  fi
  [ $keeps_builds = 0 ] || keep_builds
}

# Of the builds that stay, those go that the account could not change, and all directories for temporary files.
keep_builds() {
  [ -d "$builds" ] && [ ! -L "$builds" ] || return 0
  find "$builds/" -xdev -mindepth 1 -maxdepth 1 | while IFS= read -r d; do
    case $d in
      *.tmp) ;;
      *) [ -n "$(find "$d" -xdev ! -user "$uid" 2>/dev/null | head -n 1)" ] || continue ;;
    esac
    rm -rf -- "$d" || exit 1
  done || fail "cannot remove builds in $builds"
}

# Of the engine's state, only images stay or come back: no container, volume, network or secret, and no path of another login.
forget_containers() {
  part=
  for name in .local share containers storage; do
    part=$part/$name
    [ -d "$home$part" ] && [ ! -L "$home$part" ] || return 0
  done
  rm -rf "$store/storage/libpod" "$store/storage/db.sql" "$store/storage/volumes" "$store/storage/networks" \
    "$store/storage/secrets" || fail "cannot remove the containers in $store"
}

if [ $only_check = 1 ]; then
  echo "may clean"
  exit 0
fi
forget_plans
end_processes
rounds=0
while :; do
  # Once more: until its end, a process may have planned anew.
  forget_plans
  remove_journal
  remove_keys
  remove_ipc
  remove_files
  # Later than the first scan: what appeared meanwhile may have made files.
  find_processes
  [ -n "$found" ] || break
  rounds=$((rounds + 1))
  [ $rounds -lt 5 ] || fail "processes of $account appear again and again"
  end_processes
done
cp -a "$skeleton/." "$home/" || fail "cannot copy $skeleton to $home"
[ $containers = 0 ] || forget_containers
free=$(df -Pk "$home" | { read -r x; read -r x x x free x; echo "$free"; })
[ "$free" -ge $((least * 1024)) ] || fail "only $((free / 1024)) MiB are free in $home"
if [ -d "$builds" ]; then
  [ $keeps_builds = 1 ] || [ -z "$(find "$builds/" -xdev -mindepth 1 2>/dev/null | head -n 1)" ] || fail "$builds is not empty"
  free=$(df -Pk "$builds" | { read -r x; read -r x x x free x; echo "$free"; })
  [ "$free" -ge $((least * 1024)) ] || fail "only $((free / 1024)) MiB are free in $builds"
fi
