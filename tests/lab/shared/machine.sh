#!/bin/sh
# Process 1 of an instance: mounts a copy-on-write view of this machine, and boots inside it.
#
#   machine.sh DIRECTORY PORT ADDRESS…    in process and mount namespaces of its own
#
# An instance cannot change this machine's files: its changes are in memory and vanish with it. The home directories of
# this machine's users are not visible.
set -eu
umask 022
dir=$1
shift
root=$dir/root
changes=$dir/changes

mkdir "$root" "$changes"
mount -t tmpfs -o mode=755 lab "$root"
mount -t tmpfs -o mode=755 lab "$changes"
for place in /*; do
  name=${place#/}
  if [ -L "$place" ]; then
    cp -P "$place" "$root/$name"
    continue
  fi
  case $name in
    bin | etc | lib* | opt | sbin | srv | usr | var)
      mkdir "$root/$name" "$changes/$name" "$changes/$name.work"
      mount -t overlay -o "lowerdir=$place,upperdir=$changes/$name,workdir=$changes/$name.work" lab "$root/$name"
      ;;
  esac
done
mkdir "$root/home" "$root/root" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp"
mount -t proc lab "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 lab "$root/run"
mount -t tmpfs -o mode=1777 lab "$root/tmp"
mkdir "$root/run/lab" "$root/run/sshd"
mount --bind "$dir" "$root/run/lab"
cp "$(dirname "$0")/boot.sh" "$(dirname "$0")/power.sh" "$root/run/"
exec chroot "$root" /run/boot.sh "$@"
