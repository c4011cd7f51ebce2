#!/bin/sh
# Machines of the tests' platform, which are known by their names. docs/providers/external.md describes the protocol.
set -eu
request=$(cat)
field() { printf '%s' "$request" | jq -r "$1 // empty"; }
refuse() { jq -n --arg error "$2" '{error: $error, scope: "shelf 1"}'; exit "$1"; }
platform=$(field .settings.platform)
machines=$platform/machines faults=$platform/faults

case "$1" in
  capabilities)
    echo '{"protocol": 1, "name": "shelf", "identity": "names", "idempotent_launch": true, "appears_within_s": 2,
      "verbs": ["console"]}' ;;
  launch)
    if [ -e "$faults/full" ]; then refuse 11 "the shelf is full"; fi
    if mv "$faults/refuse" "$faults/refused" 2>/dev/null; then refuse "$(cat "$faults/refused")" "as the test says"; fi
    name=$(field .name)
    mkdir -p "$machines/$name"
    printf '%s' "$request" >"$machines/$name/.new-$$"
    mv "$machines/$name/.new-$$" "$machines/$name/request"
    if mv "$faults/lose" "$faults/lost" 2>/dev/null; then exit 1; fi
    jq -n --arg name "$name" '{machine: $name}' ;;
  list)
    if [ -e "$faults/empty" ]; then
      # One byte for each list.
      printf . >>"$faults/empty"
      echo '{"complete": true, "machines": []}'
      exit
    fi
    for dir in "$machines"/*/; do
      [ -d "$dir" ] || continue
      state=$(cat "$dir/state" 2>/dev/null || echo '{"state": "starting"}')
      printf '%s' "$state" | jq --arg name "$(basename "$dir")" '. + {machine: $name, name: $name}'
    done | jq -s '{complete: true, machines: .}' ;;
  terminate)
    [ -d "$machines/$(field .machine)" ] || refuse 10 "no such machine"
    : >"$machines/$(field .machine)/end"
    echo '{"state": "stopping"}' ;;
  console)
    jq -n --rawfile text "$machines/$(field .machine)/console" '{text: $text}' || refuse 10 "no such machine" ;;
  *) exit 2 ;;
esac
