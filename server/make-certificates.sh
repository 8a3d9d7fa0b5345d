#!/bin/sh
# Make the certificate authority of a federation and the certificate of its server.
#
#   server/make-certificates.sh FOLDER NAME...
#
# NAME: a DNS name or an IP address under which clients reach the server; localhost, 127.0.0.1 and
# ::1 are always added. FOLDER gets
#   ca.crt      the authority's certificate: give it to every client
#   ca.key      the authority's key: keep it off the server once server.pem is made
#   server.pem  the server's certificate
#   server.key  the server's key: the server alone reads it
#
# It overwrites nothing: with ca.crt and ca.key there (a new server certificate from the same
# authority), remove server.pem and server.key first. Certificates are valid for 825 days, or as
# many as the environment variable DAYS says.
set -eu
umask 077

help() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
}

fail() {
  echo "make-certificates: $1" >&2
  exit 2
}

case ${1:-} in
  -h | --help) help ;;
esac
[ $# -ge 2 ] || fail "got $# arguments; expected FOLDER and the server's names or addresses"
command -v openssl >/dev/null || fail "openssl: not found; install it (Debian: apt install openssl)"
days=${DAYS:-825}
folder=$1
shift

names="DNS:localhost,IP:127.0.0.1,IP:::1"
for name in "$@"; do
  case $name in
    # As it stands before a port.
    \[*:*\])
      name=${name#\[}
      name=${name%\]}
      ;;
  esac
  case $name in
    '' | -* | *[!A-Za-z0-9.:-]*) fail "'$name': expected a DNS name or an IP address" ;;
    *:*) names="$names,IP:$name" ;;
    *[!0-9.]*) names="$names,DNS:$name" ;;
    *) names="$names,IP:$name" ;;
  esac
done

(umask 022 && mkdir -p "$folder")
for file in server.pem server.key; do
  [ ! -e "$folder/$file" ] || fail "$folder/$file: already there; remove it to make a new one"
done
if [ -e "$folder/ca.crt" ] || [ -e "$folder/ca.key" ]; then
  { [ -e "$folder/ca.crt" ] && [ -e "$folder/ca.key" ]; } ||
    fail "$folder: expected both ca.crt and ca.key, or neither"
fi

# Nothing half made stands under its name.
work=$(mktemp -d "$folder/.making-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM

make_key() {
  openssl ecparam -name prime256v1 -genkey -noout -out "$1"
}

if [ ! -e "$folder/ca.key" ]; then
  make_key "$work/ca.key"
  openssl req -x509 -new -sha256 -days "$days" -key "$work/ca.key" -out "$work/ca.crt" \
    -subj "/CN=retexo federation authority" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
    -addext "keyUsage=critical,keyCertSign,cRLSign"
  chmod 0644 "$work/ca.crt"
  mv "$work/ca.key" "$work/ca.crt" "$folder/"
fi

make_key "$work/server.key"
openssl req -new -sha256 -key "$work/server.key" -out "$work/server.csr" -subj "/CN=retexo server"
cat >"$work/extensions" <<END
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=$names
authorityKeyIdentifier=keyid
END
openssl x509 -req -sha256 -days "$days" -in "$work/server.csr" -extfile "$work/extensions" \
  -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
  -out "$work/server.pem" 2>"$work/said" || fail "openssl: $(cat "$work/said")"
chmod 0644 "$work/server.pem"
mv "$work/server.key" "$work/server.pem" "$folder/"

echo "$folder: ca.crt for every client; server.pem and server.key for $names"
