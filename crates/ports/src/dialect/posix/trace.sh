# Leaves the trace of a stage for cleaning, before its shell starts. A stage that cannot leave one does not run.
# MARK, ATTEMPT: names without special characters. BUILDS: the attempt's builds directory, as a word of a shell.
n="$HOME/.greenroom/${MARK}"; b=${BUILDS}; set --;
[ -r /proc/$$/stat ] && read -r s </proc/$$/stat && set -- ${s##*) };
[ -d "$n" ] && [ -d "$b.tmp" ] || mkdir -p -m 700 "$n" "$b.tmp" 2>/dev/null;
# The shell itself makes the file: the guest would need more time to start a program for it than for the rest.
{ [ -L "$n/${ATTEMPT}.builds" ] || ln -s "$b" "$n/${ATTEMPT}.builds" || [ -L "$n/${ATTEMPT}.builds" ]; } &&
  true >>"$n/${ATTEMPT}.$$.${20:-0}" || {
  echo "greenroom: cannot record in $n what to clean after this job" >&2; exit 97; };
[ ! -d "$b.tmp" ] || { TMPDIR="$b.tmp"; export TMPDIR; };
GREENROOM_TRACE=/${MARK}/; export GREENROOM_TRACE;
