# Checks, without starting anything, whether this account can run containers.
for p in podman newuidmap newgidmap; do
  (PATH=$PATH:/usr/sbin:/sbin; command -v $p) >/dev/null || {
    echo "jobs in containers need $p, which is not installed: run greenroom doctor"; exit 1; }
done
for f in /etc/subuid /etc/subgid; do
  grep -qs -e "^$(id -un):" -e "^$(id -u):" $f || {
    echo "jobs in containers need subordinate ids of $(id -un) in $f: run greenroom doctor"; exit 1; }
done
