# Checks, as the account of jobs, that the next job can begin here.
# $1: the directory of builds; $2: KiB, and $3: inodes that have to be free there.
LC_ALL=C
export LC_ALL
newline='
'

fail() {
  printf '%s\n' "$*"
  exit 1
}

# The last words of a program's first line, which are the system's own.
cause() {
  first=${1%%"$newline"*}
  printf '%s' "${first##*: }"
}

# The name is chosen at random: a job may have left anything under a name that it knew.
writes() {
  if said=$(mktemp "$1/.greenroom-check.XXXXXXXXXX" 2>&1); then
    file=$said
    said=$(dd if=/dev/zero of="$file" bs=65536 count=1 2>&1)
    written=$?
    rm -f "$file"
    [ "$written" = 0 ] && return
  fi
  fail "jobs cannot write to $1: $(cause "$said")"
}

# What is free for $1 by `df -P$2`; empty if the file system does not tell.
free() {
  line=$(df -P"$2" "$1" 2>/dev/null | tail -n 1)
  case $line in *%*) ;; *) return ;; esac
  set -f
  # shellcheck disable=SC2086 # words
  set -- ${line%%\%*}
  while [ $# -gt 2 ]; do shift; done
  case $1 in '' | *[!0-9]*) ;; *) printf '%s' "$1" ;; esac
}

made=
if [ ! -d "$1" ]; then
  said=$(mkdir -p "$1" 2>&1) || fail "jobs cannot create $1: $(cause "$said")"
  made=$1
fi
writes "$1"
kib=$(free "$1" k)
[ "${kib:-$2}" -ge "$2" ] || fail "only $((kib / 1024)) MiB are free in $1, less than $(($2 / 1024)) MiB"
inodes=$(free "$1" i)
[ "${inodes:-$3}" -ge "$3" ] || fail "only $inodes inodes are free in $1, fewer than $3"
temporary=${TMPDIR:-/tmp}
[ ! -d "$temporary" ] || writes "$temporary"
[ -z "$made" ] || rmdir "$made" 2>/dev/null
exit 0
