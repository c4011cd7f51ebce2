# Shows as the account of jobs that stages can begin here: they leave a note first. Argument: the mark.
notes=$HOME/.greenroom/$1
{ mkdir -p -m 700 "$notes" && ln -s / "$notes/try" && rm "$notes/try"; } 2>/dev/null && exit
echo "cannot make $notes and write to it"
exit 1
