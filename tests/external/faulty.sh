#!/bin/sh
# Calls a program. In five of a hundred calls, something goes wrong; in KILLS more, the program is killed. The seed, the verb and
# the number of its call decide which calls, and at which moment.
# Usage: faulty.sh PROGRAM SEED KILLS DIRECTORY VERB
program=$1 seed=$2 kills=$3 calls=$4 verb=$5
call=1
[ -d "$calls" ] || exit 1
until mkdir "$calls/$verb-$call" 2>/dev/null; do call=$((call + 1)); done
number=$(printf '%s' "$seed $verb $call" | cksum | cut -d ' ' -f 1)
share=$((number % 100)) moment=$((number / 100 % 25))
[ "$share" -lt 5 ] || [ "$share" -ge $((5 + kills)) ] || share='kill'
note() { echo "$*" >"$calls/$verb-$call/fault"; }
case $share in
  0) note 'fails before it does anything' && exit 1 ;;
  1) note 'loses its answer' && "$program" "$verb" >/dev/null; exit 1 ;;
  2) note 'cuts its answer' && "$program" "$verb" | head -c 10 ;;
  3 | kill)
    exec 3<&0
    note "is killed after $((moment * 10)) ms"
    # A background process of a shell would have no standard input otherwise.
    "$program" "$verb" <&3 &
    sleep "$(printf '0.%02d' "$moment")"
    kill -9 $!
    exit 1
    ;;
  4) note 'is busy' && echo '{"error": "the platform is busy"}' && exit 16 ;;
  *) exec "$program" "$verb" ;;
esac
