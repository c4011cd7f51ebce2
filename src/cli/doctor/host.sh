# Prints what this host has for jobs, one word per line. Changes nothing.
# BUILDS, CACHE: the directories of a pool, as words of a shell. SHELLS: names of shells.
echo runs-sh; echo "path-$PATH"; [ -r /proc/self/stat ] && echo has-proc; pgrep -s $$ >/dev/null 2>&1;
[ $? -lt 2 ] && command -v pkill >/dev/null 2>&1 && echo has-pkill;
for c in ${SHELLS} git git-lfs gitlab-runner; do command -v $c >/dev/null 2>&1 && echo has-$c; done;
d=${BUILDS}; while [ ! -e "$d" ]; do d=$(dirname "$d"); done; [ -d "$d" ] && [ -w "$d" ] &&
  echo writes-builds;
for e in ${BUILDS}/*.unremovable.* ${CACHE}/*.unremovable.*; do [ ! -e "$e" ] || { echo has-unremovable; break; }; done;
df -Pk "$d" | { read -r x; read -r x x x f x; echo free-$f; }
