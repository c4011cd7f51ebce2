#!/bin/sh
# Boots an instance, still as its process 1: applies user data like cloud-init, then runs sshd.
#
#   boot.sh PORT ADDRESS…
#
# Exit status 77 means that the instance powered itself off.
set -eu
port=$1
shift
given=/run/lab
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /

# Commands that would stop this machine stop the instance instead.
for tool in shutdown poweroff halt reboot systemctl systemd-run; do
  for place in /usr/local/sbin /usr/sbin /usr/bin; do
    [ "$place" = /usr/local/sbin ] || [ -e "$place/$tool" ] || continue
    rm -f "$place/$tool"
    cp /run/power.sh "$place/$tool"
  done
done

# Removes this machine's keys: the instance has its own.
mkdir -p /etc/ssh ~root/.ssh
rm -f /etc/ssh/ssh_host_* ~root/.ssh/authorized_keys
sed -i 's#^\(root:.*:\)[^:]*$#\1/bin/bash#' /etc/passwd

echo "[    0.000000] Linux version of the cloud lab, instance at $*"
while read -r number mode how path; do
  mkdir -p "$(dirname "$path")"
  [ "$how" = append ] || rm -f "$path"
  cat "$given/files/$number" >>"$path"
  chmod "$mode" "$path"
done <"$given/manifest"
while read -r user; do
  # A user of this machine may have the same name, with another home and shell.
  [ "$user" = root ] || userdel --force "$user" >/dev/null 2>&1 || true
  id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh "$user"
  home=$(getent passwd "$user" | cut -d: -f6)
  mkdir -p "$home/.ssh"
  cat "$given/keys/$user" >>"$home/.ssh/authorized_keys"
  chown -R "$user:" "$home/.ssh"
  chmod 700 "$home/.ssh"
  chmod 600 "$home/.ssh/authorized_keys"
  # A locked account cannot log in, even by key.
  sed -i "s/^$user:![^:]*:/$user:*:/" /etc/shadow
done <"$given/users"
for script in "$given"/scripts/*; do
  [ -e "$script" ] || continue
  status=0
  "$script" </dev/null || status=$?
  [ ! -e /run/powered-off ] || exit 77
  [ "$status" = 0 ] || echo "cloud-init: user data ended with exit status $status"
done
ls /etc/ssh/ssh_host_*_key >/dev/null 2>&1 || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
chmod 600 /etc/ssh/ssh_host_*_key

{
  echo "Port $port"
  for address; do echo "ListenAddress $address"; done
  for key in /etc/ssh/ssh_host_*_key; do echo "HostKey $key"; done
  echo "AuthorizedKeysFile .ssh/authorized_keys"
  echo "PermitRootLogin prohibit-password"
  echo "PasswordAuthentication no"
  echo "KbdInteractiveAuthentication no"
  echo "UsePAM no"
  echo "UseDNS no"
  echo "MaxStartups 200"
  echo "MaxSessions 200"
  echo "PidFile /run/sshd.pid"
  echo "Subsystem sftp internal-sftp"
  metadata=$(cat "$given/metadata")
  echo "SetEnv AWS_EC2_METADATA_SERVICE_ENDPOINT=http://$metadata GCE_METADATA_HOST=$metadata"
} >/run/sshd_config

# The host keys, as cloud-init prints them.
cut="-----"
echo "${cut}BEGIN SSH HOST KEY FINGERPRINTS${cut}"
for key in /etc/ssh/ssh_host_*_key; do ssh-keygen -l -f "$key"; done
echo "${cut}END SSH HOST KEY FINGERPRINTS${cut}"
echo "${cut}BEGIN SSH HOST KEY KEYS${cut}"
for key in /etc/ssh/ssh_host_*_key; do ssh-keygen -y -f "$key"; done
echo "${cut}END SSH HOST KEY KEYS${cut}"
echo "cloud-init: finished"

/usr/sbin/sshd -D -f /run/sshd_config -E "$given/sshd.log" &
status=0
wait $! || status=$?
[ ! -e /run/powered-off ] || exit 77
echo "sshd ended with exit status $status"
exit 1
