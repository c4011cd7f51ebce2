# Prepares this machine for its first login: its host key, and the account that the key of Greenroom logs in to. For any POSIX shell.
# Set above: private and public (the host key), user, authorized (the public key that logs in).
umask 077
mkdir -p /etc/ssh
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub
printf '%s\n' "$private" >/etc/ssh/ssh_host_ed25519_key
printf '%s\n' "$public" >/etc/ssh/ssh_host_ed25519_key.pub
chmod 644 /etc/ssh/ssh_host_ed25519_key.pub
if ! id "$user" >/dev/null 2>&1; then
  useradd --create-home --shell /bin/bash "$user" || adduser -D -s /bin/sh "$user"
  # No password fits, but the account is not locked: an sshd without PAM would let nobody in.
  usermod -p '*' "$user" || echo "$user:*" | chpasswd -e
fi
home=$(getent passwd "$user" | cut -d: -f6)
mkdir -p "$home/.ssh"
printf '%s\n' "$authorized" >>"$home/.ssh/authorized_keys"
chmod 700 "$home/.ssh"
chmod 600 "$home/.ssh/authorized_keys"
chown -R "$user:" "$home/.ssh"
if [ "$user" != root ] && [ -d /etc/sudoers.d ]; then
  echo "$user ALL=(ALL) NOPASSWD:ALL" >/etc/sudoers.d/90-greenroom
  chmod 440 /etc/sudoers.d/90-greenroom
fi
systemctl try-restart ssh.service sshd.service 2>/dev/null || rc-service sshd restart 2>/dev/null || true
