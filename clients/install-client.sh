#!/bin/sh
# Put one client's files where its units read them: a user, keys, settings, units.
#
#   clients/install-client.sh [PART]
#
# As root, in the folder that `retexo fleet new` made for the client, where it is called install.sh.
# PART: folder of the client's part, which is copied to where its agent.toml looks for it. Run it
# again when a file has come or changed: it does what is left to do.
set -eu
umask 077

help() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
}

fail() {
  echo "install: $1" >&2
  exit 2
}

case ${1:-} in
  -h | --help) help ;;
esac
[ $# -le 1 ] || fail "got $# arguments; expected the folder of the part, or none"
[ -z "${1:-}" ] || [ -d "$1" ] || fail "$1: expected the folder of the part"
[ -r agent.toml ] || fail "agent.toml: missing; expected the folder that retexo fleet new made"
name=$(sed -n 's#^key = "/etc/retexo/\([a-z0-9][a-z0-9-]*\)/key\.pem"$#\1#p' agent.toml)
[ -n "$name" ] || fail "agent.toml: expected key = \"/etc/retexo/NAME/key.pem\""
part=$(sed -n 's#^partition = "\(/.*\)"$#\1#p' agent.toml)
[ -n "$part" ] || [ -z "${1:-}" ] || fail "agent.toml: expected partition with an absolute path"
user=retexo-$name
own=/etc/retexo/$name
if [ -n "${1:-}" ] && { [ -e "$part" ] || [ -L "$part" ]; }; then
  # It becomes this client's: what is somebody else's, be it by a link, is not given away.
  owner=$(stat -Lc %U "$part" 2>/dev/null) || owner=nobody
  [ "$owner" = "$user" ] || fail "$part: is $owner's; expected partition to be no folder yet, or $user's"
  [ ! "$1" -ef "$part" ] || fail "$1: is where the part is to be; expected another folder, or none"
fi

id "$user" >/dev/null 2>&1 ||
  useradd --system --home-dir "/var/lib/retexo-agents/$name" --shell /usr/sbin/nologin "$user"
install -d -m 0755 /etc/retexo /var/lib/retexo-agents
# Code that the server sends to other clients of this machine does not learn who this one's peers are.
install -d -g "$user" -m 0750 "$own"
install -d -o "$user" -g "$user" -m 0700 "/var/lib/retexo-agents/$name"
for file in agent.toml supernode.env ca.crt roster.toml certificate.pem; do
  [ ! -e $file ] || install -m 0644 $file "$own/"
done
# Of one that is there its owner has promised something since.
[ ! -e member.toml ] || [ -e "$own/member.toml" ] || install -m 0644 member.toml "$own/"
for file in key.pem agreement-secret; do
  [ ! -e $file ] || install -m 0600 $file "$own/"
  [ ! -e "$own/$file" ] || chown "$user:" "$own/$file"
done
[ ! -e supernode-key ] || install -m 0600 supernode-key "$own/"
units="retexo-agent@$name retexo-supernode@$name"
if grep -q '^supernode-key = ' agent.toml; then
  # The agent is its own SuperNode, and shows the server this key itself.
  units="retexo-agent@$name"
  [ ! -e "$own/supernode-key" ] || chown "$user:" "$own/supernode-key"
fi
if [ -n "${1:-}" ]; then
  install -d -o "$user" -g "$user" -m 0700 "$part"
  # Through no link that this client's user has put there.
  cp -R --remove-destination "$1/." "$part/"
  chown -R "$user:" "$part"
fi
install -m 0644 ./*@.service /etc/systemd/system/
systemctl daemon-reload
echo "install: $own is ready; systemctl enable --now $units"
