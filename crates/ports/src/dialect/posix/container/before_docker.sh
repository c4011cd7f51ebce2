# Ends a container of Docker that still runs, before it is started: a client that was killed has left it, and the engine attaches
# to one that runs. With the lock.
m=; { while seek; [ -n "$m" ] && live $m; do
    [ -z "$c" ] || kill -KILL $c;
    [ $((n += 1)) -lt 250 ] || { echo "Error: the container still runs" >&3; exit 125; };
    sleep 0.02 || sleep 1;
  done; } 3>&2 2>/dev/null;
