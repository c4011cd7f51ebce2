# Watches the start of a container. Until it runs, the limit is `w` seconds; then the session, `s`, is ended with an error, first
# of all the engine's client, `k`. Afterwards the container is ended if the connection's process, `q`, has gone: no signal reaches
# the container from there. The guard ends with the lock, so that a stop can wait for it, too.
# DIR, LOCK: the directory of the engine's files, and the file of the lock. FUNCTIONS: functions.sh. NOT_STARTED: a message.
# OVER: exits if the container has run and ended. AFTER: the last commands, once no client has the lock.
exec 3>&2 2>/dev/null; flock -w 1 "${DIR}" true || exit;
${FUNCTIONS}
now() { read -r t x </proc/uptime; t=${t%.*}; }; now; b=$t;
while seek; [ -z "$c" ]; do
  live $k || exit;
  ${OVER}
  now; [ $((t - b)) -lt $w ] || {
    echo "Error: ${NOT_STARTED} $w s" >&3; kill -KILL $k;
    for f in /proc/[0-9]*/stat; do
      x=; while read -r l; do x=$l; done <"$f"; p=${f#/proc/}; set -- ${x##*) };
      p=${p%/stat}; [ "$4" != $s ] || [ $p = $$ ] || kill -KILL $p;
    done;
    exit; };
  ! flock -w 0.2 ${LOCK} true || exit;
done;
exec 3>&-; f=${LOCK};
until flock -w 2 "$f" true; do
  live $q || { seek; [ -z "$c" ] || kill -KILL $c; exit; };
done;
${AFTER}
