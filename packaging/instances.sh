# What the state directory records, from its files: the program may be gone already.

state_dir() {
  configured=$(sed -n -e '/^[[:space:]]*\[/q' \
    -e "s/^[[:space:]]*state_dir[[:space:]]*=[[:space:]]*[\"']\([^\"']*\)[\"'].*/\1/p" \
    /etc/greenroom/greenroom.toml 2>/dev/null | head -n 1)
  echo "${configured:-/var/lib/greenroom}"
}

# Machines in clouds: each has a launch spec until it is gone. A plugin's machines are in the record of their pool.
cloud_instances() {
  {
    find "$(state_dir)/launches" -mindepth 2 -maxdepth 2 -name '*.json' 2>/dev/null |
      sed -e 's|.*/||' -e 's|\.json$||'
    plugin_instances
  } | sort -u
}

# The launches and machines in the records of plugins, without those that are gone.
plugin_instances() {
  for record in "$(state_dir)"/fleeting/*/record.json; do
    [ -f "$record" ] || continue
    sed -e 's/"intents":/\n&/g' -e 's/"former":/\n&/g' "$record" | grep '^"intents":' |
      grep -o -e '"instance":"[^"]*"' -e '"[^"]*":{"id":"' |
      sed -e 's/^"instance":"\(.*\)"$/\1/' -e 's/^"\([^"]*\)":{"id":"$/\1/'
  done
}

# Virtual machines and processes on this host.
local_instances() {
  find "$(state_dir)/instances" -mindepth 2 -maxdepth 2 -type d 2>/dev/null | sed -e 's|.*/||' | sort
}

# True, with a warning, if instances are recorded.
warn_of_instances() {
  instances=$(cloud_instances; local_instances)
  [ -n "$instances" ] || return 1
  {
    echo "greenroom: these instances are still recorded, and no keeper terminates them any more:"
    echo "$instances" | sed -e 's/^/  /'
    echo "  help: install the package again and run \`greenroom pool drain POOL --wait\`; clouds bill until then"
  } >&2
}
