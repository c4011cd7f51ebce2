# The first process of a pod's container `job`, for /bin/sh: makes a host key, shows its public half as the first line of the
# log, and runs the SSH server. Exit status 78 means that the image cannot serve jobs.
set -u
# A log keeps the order of one stream, but not that of two.
exec 2>&1
fail() {
  echo "greenroom: $1"
  exit 78
}
umask 022
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/sbin:/sbin
sshd=$(command -v sshd) || fail "the image has no sshd: install OpenSSH's server"
command -v ssh-keygen >/dev/null || fail "the image has no ssh-keygen: install OpenSSH"
dir=/run/greenroom/ssh
mkdir -p "$dir" || fail "cannot write to /run/greenroom"
rm -f "$dir/host_key" "$dir/host_key.pub"
ssh-keygen -q -t ed25519 -N '' -C '' -f "$dir/host_key" </dev/null || fail "ssh-keygen made no host key"
read -r kind key rest <"$dir/host_key.pub"
echo "greenroom-host-key $kind $key"
printf '%s\n' "$GREENROOM_AUTHORIZED_KEY" >"$dir/authorized_keys"
chmod 644 "$dir/authorized_keys"
user=$GREENROOM_USER
if [ "$(id -u)" = 0 ]; then
  if ! id "$user" >/dev/null 2>&1; then
    useradd --create-home --shell /bin/bash "$user" 2>/dev/null || adduser -D -s /bin/sh "$user" ||
      fail "cannot create the user $user"
    # No password fits, but the account is not locked: an sshd without PAM refuses locked ones.
    usermod -p '*' "$user" 2>/dev/null || echo "$user:*" | chpasswd -e
  fi
  mkdir -p /run/sshd /var/empty
  chmod 755 /run/sshd
elif [ "$(id -un 2>/dev/null)" != "$user" ]; then
  fail "the pod runs as user id $(id -u), which is not the user $user of the pool"
fi
# Sessions get the container's environment, apart from what belongs to a login.
set -- LANG=C.UTF-8
while IFS= read -r line; do
  case $line in
    GREENROOM_* | KUBERNETES_* | HOME=* | USER=* | LOGNAME=* | SHELL=* | PWD=* | OLDPWD=* | SHLVL=* | HOSTNAME=* | MAIL=* | TERM=* | _=*) ;;
    [A-Za-z_]*=*) set -- "$@" "$line" ;;
  esac
done <<END_OF_ENVIRONMENT
$(env)
END_OF_ENVIRONMENT
{
  printf 'Port %s\nListenAddress %s\nHostKey %s/host_key\n' "$GREENROOM_PORT" "$GREENROOM_LISTEN" "$dir"
  printf 'AuthorizedKeysFile %s/authorized_keys\nStrictModes no\nPidFile none\nUsePAM no\n' "$dir"
  printf 'PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n'
  printf 'AllowUsers %s\nAllowAgentForwarding no\nX11Forwarding no\nPrintMotd no\nMaxSessions 100\nMaxStartups 100\nSetEnv' "$user"
  for variable; do
    printf ' "%s"' "$(printf '%s' "$variable" | sed 's/[\\"]/\\&/g')"
  done
  echo
} >"$dir/sshd_config"
"$sshd" -t -f "$dir/sshd_config" || fail "sshd does not accept its configuration"
# A server that is told to stop exits with 0. The pod would then count as succeeded, and its status would not say that the
# kubelet evicted it. When this process exits, the kernel kills all others of the container.
trap 'exit 143' TERM INT
"$sshd" -D -e -f "$dir/sshd_config" &
wait $!
status=$?
# A job has stopped the server.
[ "$status" -ne 0 ] || status=143
exit "$status"
