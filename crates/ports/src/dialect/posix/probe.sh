# Shows that a stage can leave its trace, and leaves none.
# MARK: a name without special characters.
n="$HOME/.greenroom/${MARK}"; { [ -d "$n" ] || mkdir -p -m 700 "$n"; } &&
  ln -sf / "$n/.probe.$$" && rm -f "$n/.probe.$$" || {
  echo "greenroom: cannot record in $n what to clean after a job" >&2; exit 97; };
