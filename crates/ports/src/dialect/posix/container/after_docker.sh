# Ends a container of Docker, once no client of it has the lock.
# Set above: f, the file of the lock.
exec 8>>"$f"; flock -n 8 || exit; n=0;
while seek; [ -n "$m" ] && live $m && [ $((n += 1)) -lt 250 ]; do
  [ -z "$c" ] || kill -KILL $c; sleep 0.02 || sleep 1;
done
