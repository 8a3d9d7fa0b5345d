#!/bin/sh
# A federation of two Raspberry Pis to try: the server's side of edge/two-pis.md, in one command.
#
#   edge/quick-server.sh FOLDER SERVER PI0 PI1
#
# SERVER, PI0, PI1: names or addresses under which the three machines reach each other; an IPv6
# address with or without brackets. FOLDER gets certificates, the files of a SuperLink that is left
# running, and pi-0.tar and pi-1.tar: all that each Pi needs, with half of a built-in graph. Where
# FOLDER is there already, only the SuperLink is started. It needs retexo, flower-superlink and flwr
# on PATH, openssl and ssh-keygen.
#
# The Pis' keys are made here, so whoever has FOLDER can pose as either: a try, not for real data.
set -eu
umask 077

help() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
}

fail() {
  echo "quick-server: $1" >&2
  exit 2
}

# An IPv6 address stands in brackets where a port follows.
before_port() {
  case $1 in
    \[*) echo "$1" ;;
    *:*) echo "[$1]" ;;
    *) echo "$1" ;;
  esac
}

case ${1:-} in
  -h | --help) help ;;
esac
[ $# -eq 4 ] || fail "got $# arguments; expected FOLDER and the addresses of server, first and second Pi"
folder=$1
server=$(before_port "$2")
case $server in
  \[*) listen=:: ;;
  *) listen=0.0.0.0 ;;
esac
source=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
for name in retexo flower-superlink flwr openssl ssh-keygen; do
  command -v $name >/dev/null || fail "$name: not found on PATH; docs/installation.md says how"
done
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
# The SuperLink's own programs reach it on this machine, whatever proxy the environment names.
NO_PROXY=${no_proxy:-${NO_PROXY:-}},127.0.0.1,::1,localhost
export NO_PROXY no_proxy="$NO_PROXY"

prepare() {
  "$source/server/make-certificates.sh" tls "$server" >/dev/null
  retexo partition make --clients 2 --out parts >/dev/null
  for client in 0 1; do
    pi=pi-$client
    mkdir "$pi"
    retexo keys new --client $client --address "tcp://$(before_port "$1"):7411" --out "$pi/keys" >/dev/null
    ssh-keygen -q -t ecdsa -b 384 -N '' -C '' -f "$pi/supernode-key"
    mv "parts/part-$client" "$pi/part"
    cp tls/ca.crt "$pi/"
    echo "SUPERLINK=$server:8000" >"$pi/supernode.env"
    shift
  done
  retexo keys roster pi-0/keys/member.toml pi-1/keys/member.toml --out roster.toml >/dev/null
  for pi in pi-0 pi-1; do
    cp roster.toml $pi/
    tar cf $pi.tar $pi
  done
}

if [ ! -d "$folder" ]; then
  mkdir -p "$(dirname "$folder")"
  work=$(mktemp -d "$folder.making-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' HUP INT TERM
  (cd "$work" && prepare "$3" "$4")
  mv "$work" "$folder"
  trap - EXIT HUP INT TERM
fi

cd "$folder"
if [ -r superlink.pid ] && kill -0 "$(cat superlink.pid)" 2>/dev/null; then
  fail "$folder: its SuperLink runs already, process $(cat superlink.pid)"
fi
FLWR_HOME=$PWD/flower nohup flower-superlink --host $listen --port 8000 --database superlink.db \
  --enable-supernode-auth --ssl-ca-certfile tls/ca.crt --ssl-certfile tls/server.pem \
  --ssl-keyfile tls/server.key >superlink.log 2>&1 &
echo $! >superlink.pid

seconds=0
until grep -q "Uvicorn running on" superlink.log; do
  if ! kill -0 "$(cat superlink.pid)" 2>/dev/null; then
    if grep -qi "in use" superlink.log; then
      fail "port 8000 is in use: stop the process that uses it (ss -ltnp shows it), then try again"
    fi
    fail "the SuperLink ended: see $folder/superlink.log"
  fi
  seconds=$((seconds + 1))
  [ $seconds -le 120 ] || fail "the SuperLink is not up after 120 s: see $folder/superlink.log"
  sleep 1
done
if [ ! -e registered ]; then
  "$source/server/register-client.sh" "$server:8000" tls/ca.crt pi-0/supernode-key.pub \
    pi-1/supernode-key.pub >/dev/null
  touch registered
fi
echo "$folder: pi-0.tar and pi-1.tar for the Pis; the SuperLink runs (to stop it: kill $(cat superlink.pid))"
