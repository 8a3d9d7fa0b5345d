#!/bin/sh
# Let a client's SuperNode in: tell the running SuperLink its public key.
#
#   server/register-client.sh HOST:PORT CA_CRT PUBLIC_KEY...
#
# HOST:PORT and CA_CRT: the SuperLink and its authority's certificate. PUBLIC_KEY: supernode-key.pub
# as the client made it (docs/deployment.md); one that was registered before stays so. It needs
# `flwr` of the server's environment: on PATH, or in /opt/retexo/bin.
set -eu
umask 077

help() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
}

fail() {
  echo "register-client: $1" >&2
  exit 2
}

case ${1:-} in
  -h | --help) help ;;
esac
[ $# -ge 3 ] || fail "got $# arguments; expected HOST:PORT, the authority's certificate and keys"
address=${1#https://}
address=${address%/}
authority=$2
shift 2
[ -r "$authority" ] || fail "$authority: cannot be read"
case $authority in
  /*) ;;
  *) authority=$PWD/$authority ;;
esac
case $address in
  \[*:*\]:*[!0-9]* | *[!][A-Za-z0-9.:-]* | '') fail "'$address': expected HOST:PORT" ;;
  \[*:*\]:*) ;;
  *:*:*) fail "'$address': expected an IPv6 address in brackets, [ADDRESS]:PORT" ;;
esac
PATH=$PATH:/opt/retexo/bin
command -v flwr >/dev/null || fail "flwr: not found; expected it on PATH or in /opt/retexo/bin"

FLWR_HOME=$(mktemp -d)
trap 'rm -rf "$FLWR_HOME"' EXIT
trap 'exit 130' HUP INT TERM
export FLWR_HOME FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "federation"

[superlink.federation]
address = "$address"
root-certificates = "$authority"
END

for key in "$@"; do
  [ -r "$key" ] || fail "$key: cannot be read"
  code=0
  said=$(flwr supernode register "$key" federation 2>&1) || code=$?
  case $code$said in
    0*) echo "$said" ;;
    *"ublic key already in use"*) echo "register-client: $key: registered before" ;;
    *)
      echo "$said" >&2
      exit "$code"
      ;;
  esac
done
