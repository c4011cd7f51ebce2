# Polls the metadata service of this instance, for as long as standard input is open. Prints a line for each answer that
# changes, at first for each: the number of its key, and the answer with \001 for each line break, or nothing if there is no
# value. Prints `end` if the service cannot be asked. The first lines, which set `service` and `keys`, come from the link.
exec 2>/dev/null
cd /
case $service in
ec2)
  url=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
  url=${url%/} dir=/latest/meta-data
  ;;
*)
  url=http://${GCE_METADATA_HOST:-169.254.169.254} dir=/computeMetadata/v1
  ;;
esac
by=
for program in curl wget bash python3; do
  command -v $program >/dev/null || continue
  # Others cannot send PUT.
  [ $program != wget ] || wget --version | grep -q GNU || continue
  by=$program
  break
done
[ -n "$by" ] || {
  echo end
  exit
}
# For those that need it in parts.
host=${url#http://} path=
case $host in */*) path=/${host#*/} host=${host%%/*} ;; esac
port=80
case $host in
\[*\]:* | [!\[]*:*) port=${host##*:} host=${host%:*} ;;
esac
host=${host#\[} host=${host%\]}

# ask METHOD PATH HEADER: prints the answer with its headers.
ask() {
  case $by in
  curl) curl -q -s -i -g -m 3 --noproxy '*' -X "$1" -H "$3" "$url$2" ;;
  wget)
    wget -q -O - --no-config --no-proxy --save-headers --max-redirect=0 -t 1 -T 3 \
      --method="$1" --header="$3" "$url$2"
    [ $? != 8 ] || printf 'HTTP/1.0 404\r\n\r\n'
    ;;
  bash)
    bash -c 'exec 3<>"/dev/tcp/$1/$2" || exit
      printf "%s %s HTTP/1.0\r\nHost: %s\r\n%s\r\n\r\n" "$3" "$4" "$1" "$5" >&3
      IFS= read -r -d "" -n 2000 -t 3 answer <&3
      printf %s "$answer"' bash "$host" "$port" "$1" "$path$2" "$3"
    ;;
  python3)
    python3 -I -c 'import socket, sys
host, port, method, path, header = sys.argv[1:]
server = socket.create_connection((host, int(port)), 3)
server.sendall(f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n{header}\r\n\r\n".encode())
answer = b""
while len(answer) < 2000:
    some = server.recv(2000)
    if not some:
        break
    answer += some
sys.stdout.buffer.write(answer)' "$host" "$port" "$1" "$path$2" "$3"
    ;;
  esac
}

gap=$(printf '\r\001\r\001.')
gap=${gap%.}
# get METHOD PATH HEADER: sets the status and the body, of at most 2,000 bytes together with the headers.
get() {
  answer=$(ask "$@" | head -c 2000 | tr '\000\n' '\001\001')
  status=${answer#* }
  status=${status%%[!0-9]*}
  body=${answer#*"$gap"}
  [ "$body" != "$answer" ] || body=
}

# One look at each key.
round() {
  header='Metadata-Flavor: Google'
  if [ "$service" = ec2 ]; then
    # A token serves for six hours.
    if [ -z "$token" ] || [ "$rounds" -ge 2000 ]; then
      get PUT /latest/api/token 'X-aws-ec2-metadata-token-ttl-seconds: 21600'
      [ "$status" = 200 ] || return 1
      token=$body rounds=0
    fi
    rounds=$((rounds + 1))
    header="X-aws-ec2-metadata-token: $token"
  fi
  number=0
  for key in $keys; do
    number=$((number + 1))
    get GET "$dir/$key" "$header"
    case $status in
    200) ;;
    404) body= ;;
    *)
      token=
      return 1
      ;;
    esac
    eval "before=\$before$number"
    if [ "$body" != "$before" ]; then
      eval "before$number=\$body"
      printf '%s %s\n' "$number" "$body"
    fi
  done
}

poll() {
  number=0
  for key in $keys; do
    number=$((number + 1))
    eval "before$number=unknown"
  done
  token='' rounds=0 answered='' failures=0
  while :; do
    pause=5
    if round; then
      answered=1 failures=0
    else
      pause=60 failures=$((failures + 1))
    fi
    if [ "$answered$failures" = 3 ]; then
      echo end
      exit
    fi
    sleep $pause
    # Without the shell that waits for the end of standard input, this one must not remain.
    kill -0 $$ || exit
  done
}

poll </dev/null &
polls=$!
while read -r _; do :; done
# The poll and what it has started: all of this shell's process group, if it leads one.
read -r stat </proc/$$/stat
set -- ${stat##*) }
[ "$3" != $$ ] || kill -KILL 0
kill -KILL $polls
