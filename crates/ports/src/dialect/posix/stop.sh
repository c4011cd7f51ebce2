# Stops a stage: sends TERM once to every process of its session and, after the grace, KILL until two scans in a row find none.
# Set above: s, the number of the session. In a container also what container/functions.sh sets.
# KILL_AT, OVER_AT: the time of KILL, and that of giving up, in hundredths of a second.
# SEEK, INSIDE, SPARED, MONITOR, LATE: the parts of a container; see `Additions`.
# Prefers /proc, which shows zombies: where no init reaps orphans they stay forever, and pkill counts them.
if [ -r /proc/self/stat ]; then
  sweep() {
    k=$1; n=1;
    ${SEEK}
    for f in /proc/[0-9]*/stat; do
      # A process chooses its name, line breaks and parentheses included: only what follows the last one counts.
      x=; while read -r l; do x=$l; done <"$f"; [ -n "$x" ] || continue;
      p=${f#/proc/}; p=${p%/stat}; set -- ${x##*) };
      # A process whose first thread has ended looks like a zombie, but has other threads.
      case $1 in Z|X) [ "${18}" -gt 1 ] || continue;; esac;
      # The group of that number, too, for servers that create no session.
      if [ "$3" = $s ] || ${INSIDE} [ "$4" = $s ]; then n=0; [ $k = 0 ] || ${SPARED} kill -$k $p; fi;
    done;
    ${MONITOR} return $n;
  };
else
  sweep() { if [ $1 = 0 ]; then pgrep -s $s >/dev/null; else pkill -$1 -s $s; fi; [ $? != 1 ]; };
fi;
# The guest's own clock, because rounds take longer on a busy guest.
if [ -r /proc/uptime ]; then
  now() { read -r u x </proc/uptime; t=$((${u%.*} * 100 + 1${u#*.})); };
else
  now() { t=$(($(date +%s) * 100)); };
fi;
now; b=$t; sweep TERM; w=0; e=0;
${LATE}
while [ $e -lt 2 ]; do
  sleep 0.02 || sleep 1; now;
  [ $((t - b)) -lt ${KILL_AT} ] || w=KILL; [ $((t - b)) -lt ${OVER_AT} ] || exit 1;
  if sweep $w; then e=0; else e=$((e + 1)); fi;
done; exit 0
