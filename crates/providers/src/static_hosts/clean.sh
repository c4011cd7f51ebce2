# Cleans this host after jobs: stops their processes, removes their files. For any POSIX shell, Linux and macOS.
# Set above: builds, cache, dedicated (1: only jobs use this account), keep_builds (1: builds stay with the cache).
# Arguments: the mark, --keep-cache.
mark=$1 keeps=
if [ "${2-}" = --keep-cache ]; then
  cache=
  [ "$keep_builds" != 1 ] || keeps=1
fi
grace=5     # seconds from TERM to KILL
killing=10  # seconds from KILL to failure
least=100   # MiB that must be free afterwards
notes=$HOME/.greenroom/$mark

fail() { echo "$*"; exit 1; }

case $HOME in /?*) ;; *) fail "this account has no home directory" ;; esac
case $mark in */* | '' | .*) fail "the argument with the mark is missing" ;; esac

# A link ATTEMPT.builds leads to the attempt's builds directory. A file ATTEMPT.SESSION.START notes the session of a stage.
# Fails for a note of another kind.
session() {
  s=${1##*/}; start=${s##*.}; s=${s%.*}; s=${s##*.}
  case $start in '' | *[!0-9]*) return 1 ;; esac
  case $s in '' | *[!0-9]*) return 1 ;; esac
}

# Sets `x` to what follows the name in /proc/PID/stat. A name may contain line breaks and parentheses: the last line has
# the last parenthesis.
stat() { x=; while read -r l; do x=$l; done 2>/dev/null <"/proc/$1/stat"; x=${x##*) }; [ -n "$x" ]; }

# Processes that must survive: this shell and its ancestors.
own=" "
up=$$
if [ -r /proc/self/stat ]; then
  while [ "${up:-0}" -gt 1 ] && stat "$up"; do own="$own$up "; set -- $x; up=$2; done
  stat $$; set -- $x; here=$4
else
  while [ "${up:-0}" -gt 1 ]; do own="$own$up "; up=$(ps -o ppid= -p "$up" | tr -d ' '); done
fi
# The user id, and whether the kernel shows sessions in `status`. A shell reads byte by byte: no further than needed.
me='' has_sessions='' crowded=''
while read -r k v x; do
  case $k in Uid:) me=$v ;; NSsid:) has_sessions=1; break ;; esac
done 2>/dev/null </proc/self/status
[ -n "$me" ] || me=$(id -u)
[ "$dedicated" != 1 ] || [ "$me" != 0 ] || fail "refuses to kill every process of root"

# Prints the `status` of the processes with a line like this. One program reads all of them: a shell reads byte by byte,
# which takes ten times as long. No name can imitate a line, because line breaks in names are escaped there. Kernels
# without such lines: all processes.
candidates() {
  [ -n "$has_sessions" ] || { echo /proc/[0-9]*/status; return; }
  exec grep -lsE "$1" /proc/[0-9]*/status
}

in_sessions() { lines="^NS(pgid|sid):[[:blank:]]($1)([[:blank:]]|\$)"; }

# Sets `last` to the number of the newest process.
newest() { last=; read -r x x x x last 2>/dev/null </proc/loadavg; }

# Sets `rest` to those of the candidates that are alive and not part of the cleaning.
strangers() {
  rest=
  for f in $1; do
    p=${f#/proc/} p=${p%/status}
    stat "$p" || continue
    set -- $x
    # A process whose first thread has ended looks like a zombie, but has other threads.
    case $1 in Z | X) [ "${18}" -gt 1 ] || continue ;; esac
    case $own in *" $p "*) continue ;; esac
    [ "$4" != "$here" ] || continue
    rest="$rest $p"
  done
}

# Sets `found` to the processes of jobs: those of a noted session, those that carry the mark and all in their sessions;
# in a dedicated account all others, too. The start time distinguishes a noted session from a later one with its number.
find_on_linux() {
  sessions=" " either=- found='' alone=''
  for n in "$notes"/*; do
    session "$n" || continue
    if stat "$s"; then
      set -- $x
      [ "$start" = 0 ] || [ "${20}" = "$start" ] || continue
    fi
    sessions="$sessions$s " either="$either|$s"
  done
  of_account="^Uid:[[:blank:]]${me}[[:blank:]]"
  environs='/proc/[0-9]*/environ'
  # Only processes of this account show their environment. To root, all do.
  if [ -n "$has_sessions" ] && [ "$me" != 0 ] && [ -z "$crowded" ]; then
    in_sessions "$either"
    lines="$lines|$of_account"
    newest
    scan=$((last + 1))
    all=$(candidates "$lines")
    newest
    case $all in */proc/$$/status*) ;; *) fail "cannot read the list of processes" ;; esac
    [ "$last" = "$scan" ] || scan=
    environs=
    for f in $all; do
      p=${f#/proc/} p=${p%/status}
      case "$own$scan " in *" $p "*) ;; *) environs="$environs /proc/$p/environ" ;; esac
    done
    if [ -z "$environs" ]; then
      # Proof that none was missed: numbers are given in their order, and the scan itself took the next one. So no process
      # began during the scan: what lives at its end was there from its begin, and was read. None is left that could fork.
      [ -z "$scan" ] || alone=1
      return
    fi
    [ "$dedicated" = 1 ] || crowded=1
  fi
  # -z: variables are lines that end with a zero byte; BusyBox reads no further than the first one otherwise.
  for f in $(grep -lszF "GREENROOM_TRACE=/$mark/" $environs); do
    p=${f#/proc/} p=${p%/environ}
    stat "$p" || continue
    set -- $x
    [ "$4" = "$here" ] || sessions="$sessions$4 " either="$either|$4"
  done
  in_sessions "$either"
  [ "$dedicated" != 1 ] || lines="$lines|$of_account"
  strangers "$(candidates "$lines")"
  for p in $rest; do
    stat "$p" || continue
    set -- $x
    case $sessions in *" $4 "* | *" $3 "*) found="$found $p"; continue ;; esac
    [ "$dedicated" = 1 ] || continue
    u=
    while read -r k v x; do [ "$k" != Uid: ] || { u=$v; break; }; done 2>/dev/null <"/proc/$p/status"
    [ "$u" != "$me" ] || found="$found $p"
  done
}

# Without /proc, sessions are not visible, but a shell that reads a script puts all processes it starts into its group.
find_elsewhere() {
  groups=" " found='' alone=''
  for n in "$notes"/*; do
    session "$n" || continue
    groups="$groups$s "
  done
  all=$(ps -AwwE -o pid=,pgid=,uid=,stat=,command= 2>/dev/null || ps axeww -o pid=,pgid=,uid=,stat=,command=)
  while read -r p g u state command; do
    case $state in Z*) continue ;; esac
    case $own in *" $p "*) continue ;; esac
    case $groups in *" $g "*) found="$found $p"; continue ;; esac
    case $command in *"GREENROOM_TRACE=/$mark/"*) found="$found $p"; continue ;; esac
    [ "$dedicated" = 1 ] && [ "$u" = "$me" ] && [ "$g" != $$ ] && found="$found $p"
  done <<ALL
$all
ALL
}

find_processes() { if [ -r /proc/self/stat ]; then find_on_linux; else find_elsewhere; fi; }

# Stops what is found, until two scans in a row find nothing. The first scan ends a clean of a tidy job: the second one
# comes after its files have been removed.
stop_processes() {
  find_processes
  [ -n "$found" ] || return 0
  kill -TERM $found 2>/dev/null
  began=$(date +%s)
  missed=0
  while [ $missed -lt 2 ]; do
    sleep 0.1 2>/dev/null || sleep 1
    find_processes
    if [ -z "$found" ]; then missed=$((missed + 1)); continue; fi
    missed=0
    waited=$(($(date +%s) - began))
    if [ $waited -ge $((grace + killing)) ]; then
      fail "cannot kill processes of jobs:$found"
    elif [ $waited -ge $grace ]; then
      kill -KILL $found 2>/dev/null
    fi
  done
}

# Removes write-protected directories, too. The target of a link stays as it is.
erase() {
  [ -e "$1" ] || [ -L "$1" ] || [ ! -x "${1%/*}" ] || return 0
  rm -rf -- "$1" 2>/dev/null || { [ -L "$1" ] || chmod -R u+rwx -- "$1" 2>/dev/null; rm -rf -- "$1"; } 2>&1
}

# Refuses a path that cannot be a directory of an attempt.
check() {
  case $1 in /?*/?*) ;; *) fail "refuses to remove $1: not a directory of a job" ;; esac
  case $1/ in *//* | */./* | */../*) fail "refuses to remove $1: its path is not canonical" ;; esac
  case $HOME/ in "$1"/*) fail "refuses to remove $1: the account's home is in it" ;; esac
}

# Removes directories of an attempt. One with files of another user, such as root's, may have to move out of the way instead.
remove() {
  for d in "$@"; do check "$d"; done
  rm -rf -- "$@" 2>/dev/null && return
  for d in "$@"; do
    why=$(erase "$d") || by_sudo "$d" || discard "$d" || { echo "$why"; fail "cannot remove $d"; }
  done
}

# The same of what may have files of another user in it elsewhere. What is out of the way already stays.
clear_away() {
  why=$(erase "$1") || by_sudo "$1" || case $1 in *.unremovable.*) ;; *) discard "$1" ;; esac || { echo "$why"; fail "cannot remove $1"; }
}

by_sudo() { command -v sudo >/dev/null && sudo -n rm -rf -- "$1" 2>/dev/null && [ ! -e "$1" ]; }

# A directory of the account can be renamed, whatever is in it.
discard() { mv -- "$1" "$1.unremovable.$(date +%s).$$" 2>/dev/null; }

# What was discarded earlier may be removable now.
remove_discarded() {
  for d in "$builds"/*.unremovable.*; do
    [ -d "$d" ] && [ ! -L "$d" ] || continue
    rm -rf -- "$d" 2>/dev/null || by_sudo "$d" || :
  done
}

# Builds stay for the next job if it can change all of them.
stays() { [ -n "$keeps" ] && [ -d "$1" ] && [ ! -L "$1" ] && [ -z "$(find "$1" ! -user "$me" -print 2>&1 | head -n 1)" ]; }

empty() {
  case $1 in /?*) ;; *) fail "refuses to empty $1" ;; esac
  [ -d "$1" ] || return 0
  case $HOME/ in "$1"/*) fail "refuses to empty $1: the account's home is in it" ;; esac
  chmod u+rwx -- "$1" 2>/dev/null
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -e "$e" ] || [ -L "$e" ] || continue
    clear_away "$e"
  done
}

remove_files() {
  for n in "$notes"/*; do
    [ -L "$n" ] || continue
    b=$(readlink "$n")
    check "$b"
    if stays "$b"; then remove "$b.tmp"; else remove "$b" "$b.tmp"; fi
  done
  remove_discarded
  [ -z "$cache" ] || empty "$cache"
  if [ "$dedicated" = 1 ]; then
    for d in /tmp /var/tmp /dev/shm "$(getconf DARWIN_USER_TEMP_DIR 2>/dev/null)"; do
      [ -n "$d" ] && [ -d "$d" ] || continue
      for e in "$d"/* "$d"/.[!.]* "$d"/..?*; do
        [ -n "$(find "$e" -prune -user "$me" 2>/dev/null)" ] || continue
        clear_away "$e"
      done
    done
  fi
}

stop_processes
remove_files
# A process that a scan missed is found now, and may have made files meanwhile.
[ -n "$alone" ] || find_processes
if [ -n "$found" ]; then
  stop_processes
  remove_files
fi

if [ -d "$builds" ]; then
  free=$(exec df -Pk "$builds")
  # The second line.
  set -- ${free#*
}
  free=$4
  [ "$free" -ge $((least * 1024)) ] || fail "only $((free / 1024)) MiB are free in $builds"
fi
# Last, so that the notes stay as long as a file has not been removed. Of kept builds, one link for each directory stays: a
# cleaning that keeps nothing finds them by it.
if [ -n "$keeps" ]; then
  for n in "$notes"/*; do
    k=$notes/kept.builds
    if [ -L "$n" ]; then b=$(readlink "$n"); k=$notes/kept.${b##*/}.builds; fi
    [ "$n" != "$k" ] || continue
    if [ -L "$n" ] && [ -d "$b" ]; then rm -f "$k" && mv "$n" "$k"; else erase "$n"; fi || fail "cannot change $notes"
  done
else
  erase "$notes" || fail "cannot remove $notes"
fi
# The next stage has to make this directory and to write to it.
[ -d "$HOME/.greenroom" ] || erase "$HOME/.greenroom" || fail "cannot remove $HOME/.greenroom"
{ mkdir -p -m 700 "$notes" && true >"$notes/try" && rm -f "$notes/try" && { [ -n "$keeps" ] || rm -rf "$notes"; }; } 2>/dev/null ||
  fail "cannot make $notes and write to it"
