# Gives the files of a job to a user and a group. Looks first, because a change makes git read all files again. Files may vanish
# meanwhile. No symbolic link is followed.
# Set above: d, the directory; u and g, the numbers of the user and the group.
n=0
differs() { [ -n "$(find "$d" \( ! -user "$u" -o ! -group "$g" \) -print -quit 2>/dev/null)" ]; }
while [ -d "$d" ] && differs; do
  [ $((n += 1)) -le 3 ] || exit 1
  chown -R -h -P "$u:$g" "$d"
done
exit 0
