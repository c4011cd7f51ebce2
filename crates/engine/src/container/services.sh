# Reports what the services of a job have written since the last call. For any POSIX shell, as root.
# Set above: name, last, shared, most (of each service, in bytes).
recent() {
  number=0
  while [ "$number" -lt "$last" ]; do
    number=$((number + 1))
    log=$shared/$name-$number.log known='' seen=0
    now=$(stat -L -c '%i %s' "$log" 2>/dev/null) || continue
    file=${now% *} size=${now#* }
    [ ! -f "$log.seen" ] || read -r known seen <"$log.seen"
    # The engine begins a new file when one is full.
    [ "$known" = "$file" ] || seen=0
    [ "$size" -gt "$seen" ] || continue
    echo "$file $size" >"$log.seen"
    first=$seen
    if [ $((size - seen)) -gt "$most" ]; then
      first=$((size - most))
      printf 'skipped %s %s\n' "$number" $((first - seen))
    fi
    tail -c +$((first + 1)) "$log" | head -c $((size - first)) | sed "s/^/wrote $number /"
  done
}
