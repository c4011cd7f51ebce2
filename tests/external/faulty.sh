#!/bin/sh
# Calls the program that its first argument names; in five of a hundred calls, something goes wrong.
number=$(od -An -N2 -tu2 /dev/urandom)
case $((number % 100)) in
  0) exit 1 ;;
  1) "$1" "$2" >/dev/null; exit 1 ;;
  2) "$1" "$2" | head -c 10 ;;
  3) "$1" "$2" & sleep "0.0$((number / 100 % 10))"; kill -9 $!; exit 1 ;;
  4) echo '{"error": "the platform is busy"}'; exit 16 ;;
  *) exec "$1" "$2" ;;
esac
