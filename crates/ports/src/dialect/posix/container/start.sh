# Starts a container and attaches to it, as who runs the engine.
# Set above: q, the connection's process; s, the session; w, the limit of the start in seconds.
# DIR, LOCK: the directory of the engine's files, and the file of the lock. BEFORE: what the engine needs before a start.
# GUARD: guard.sh, as a word of a shell. START, NAME: the engine's client, and the container.
[ -d "${DIR}" ] || mkdir -p -m 700 "${DIR}"; exec 9>>${LOCK}; n=0;
{ live $$; o=$a; until flock -n 9; do
    # Only an older container is killed: a slow start whose stage was given up meanwhile would kill the next stage's.
    [ $((n % 10)) != 0 ] || { seek; [ -z "$c" ] || ! live $m || [ $a -ge $o ] || kill -KILL $c; };
    [ $((n += 1)) -lt 250 ] || { echo "Error: the container still runs" >&3; exit 125; };
    sleep 0.02 || sleep 1;
  done; } 3>&2 2>/dev/null;
${BEFORE}
k=$$ q=$q s=$s w=$w /bin/sh -c ${GUARD} </dev/null >/dev/null 9>&- &
exec ${START} ${NAME}
