# Waits until cloud-init has set up this machine, if it has one. Status 2: it has recovered from errors.
command -v cloud-init >/dev/null 2>&1 || exit 0
cloud-init status --wait >/dev/null 2>&1
case $? in
  0 | 2) exit 0 ;;
esac
cloud-init status --long 2>&1
exit 1
