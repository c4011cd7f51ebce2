# Prints `held PID NAME` for a process of a stage that has its output open: first of all one in its session, else one that has
# left it and has lost its parent, with the same connection in its environment.
# Set above: s, the number of the session.
[ -r /proc/self/stat ] || {
  p=$(pgrep -s $s | head -n 1); [ -n "$p" ] && echo "held $p $(ps -o comm= -p $p)"; exit; };
holds() { for d in 1 2; do [ ! -p /proc/$1/fd/$d ] && [ ! -S /proc/$1/fd/$d ] || return 0; done; return 1; };
named() { n=; read -r n </proc/$1/comm; echo "held $1 $n"; exit; };
for w in own left; do
  for f in /proc/[0-9]*/stat; do
    x=; while read -r l; do x=$l; done <"$f"; p=${f#/proc/}; p=${p%/stat}; set -- ${x##*) };
    [ -n "$4" ] && holds $p || continue;
    if [ $w = own ]; then [ "$4" = $s ] && named $p; continue; fi;
    [ "$2" = 1 ] && [ -n "$SSH_CONNECTION" ] &&
      tr '\0' '\n' </proc/$p/environ | grep -qxF "SSH_CONNECTION=$SSH_CONNECTION" && named $p;
  done;
done
