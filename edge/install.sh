#!/bin/sh
# Make a Raspberry Pi a client of a federation: packages, program, user, units, Bluetooth, limits.
#
#   edge/install.sh [--dry-run] [--wheel FILE] [--bundle DIR] [--files DIR] [--any-memory]
#
# For Raspberry Pi OS (64-bit) and Debian, 12 and 13, as root. It installs the clone that it lies in.
# It looks at the machine first and changes nothing where something does not fit. Run it again after
# an upgrade: it does what is left to do, and writes over nothing that is yours (agent.toml, changes
# made with systemctl edit; keys, parts and supernode.env but where --files brings others).
#
#   --dry-run     say what does not fit and what would be done; change nothing
#   --wheel FILE  install this wheel of retexo-fl, not the clone
#   --bundle DIR  ask no package index: take all wheels from DIR (edge/bundle.sh makes it)
#   --files DIR   put this client's files in place, those of them that are in DIR: key.pem,
#                 certificate.pem and agreement-secret (there or in DIR/keys), supernode-key,
#                 ca.crt, roster.toml, supernode.env, and the folder part
#   --any-memory  go on with less memory than a training is known to need
set -eu
umask 022

#: A Raspberry Pi of 1 GB has about 900,000 KiB beside its GPU; see docs/edge.md.
least_memory_kib=850000
#: 1.4 GB installed, and what pip and the log put beside it.
least_disk_kib=2500000
packages="python3-venv bluez dbus rfkill openssh-client ca-certificates"
#: Firmware of the built-in adapter: Raspberry Pi OS has these, Debian the third.
firmware="pi-bluetooth bluez-firmware firmware-brcm80211"

dry=no
wheel=""
bundle=""
files=""
any_memory=no
complaints=0

help() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
}

fail() {
  echo "install: $1" >&2
  exit 2
}

complain() {
  echo "install: $1" >&2
  complaints=$((complaints + 1))
}

do_it() {
  if [ $dry = yes ]; then
    echo "would run: $*"
  else
    "$@"
  fi
}

while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=yes ;;
    --any-memory) any_memory=yes ;;
    --wheel | --bundle | --files)
      [ $# -ge 2 ] || fail "$1: expected its file or folder"
      place=$(realpath -e -- "$2") || fail "$1: expected something at $2"
      case $1 in
        --wheel) wheel=$place ;;
        --bundle) bundle=$place ;;
        --files) files=$place ;;
      esac
      shift
      ;;
    -h | --help) help ;;
    *) fail "'$1': expected --dry-run, --wheel, --bundle, --files or --any-memory" ;;
  esac
  shift
done
source=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)

# ---- does it fit? ----------------------------------------------------------------------------------

check_machine() {
  # The kernel's word is not enough: Raspberry Pi OS (32-bit) runs under a 64-bit kernel, too.
  machine=$(uname -m)
  system=$(dpkg --print-architecture 2>/dev/null || echo "no dpkg")
  case $system in
    arm64) ;;
    armhf | armel) complain "this is a 32-bit system ($system on $machine), for which there is no \
PyTorch; write Raspberry Pi OS (64-bit) to the card" ;;
    *) complain "this machine is $system ($machine), not arm64; for others see docs/deployment.md" ;;
  esac
}

check_system() {
  release=unknown
  # shellcheck source=/dev/null # of the machine
  [ ! -r /etc/os-release ] || release=$(. /etc/os-release && echo "${VERSION_CODENAME:-unknown}")
  case $release in
    bookworm | trixie) ;;
    *) complain "the system is '$release'; expected Raspberry Pi OS or Debian, bookworm or trixie" ;;
  esac
}

check_size() {
  memory_kib=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
  if [ "$memory_kib" -lt $least_memory_kib ] && [ $any_memory = no ]; then
    complain "$((memory_kib / 1000)) MB of memory; expected $((least_memory_kib / 1000)) MB: the \
agent and Flower's SuperNode take 0.6 GB together (docs/edge.md); --any-memory goes on"
  fi
  folder=/opt
  [ -d $folder ] || folder=/
  disk_kib=$(df -Pk $folder | awk 'NR == 2 { print $4 }')
  if [ ! -d /opt/retexo ] && [ "$disk_kib" -lt $least_disk_kib ]; then
    complain "$((disk_kib / 1000)) MB free below $folder; expected $((least_disk_kib / 1000)) MB"
  fi
}

check_source() {
  for file in clients/retexo-agent.service clients/retexo-supernode.service; do
    [ -r "$source/$file" ] || complain "$source/$file: missing; expected the whole repository here"
  done
  if [ -n "$bundle" ] && [ -z "$wheel" ]; then
    for wheel in "$bundle"/retexo_fl-*.whl; do :; done
    [ -r "$wheel" ] || complain "$bundle: no wheel of retexo-fl; expected what edge/bundle.sh made"
  fi
  case $wheel in
    "" | */retexo_fl-*.whl) ;;
    *) complain "$wheel: expected a wheel of retexo-fl (retexo_fl-VERSION-py3-none-any.whl)" ;;
  esac
}

# ---- what is done ----------------------------------------------------------------------------------

install_packages() {
  do_it apt-get update
  wanted=$packages
  for name in $firmware; do
    # Where both are known, Raspberry Pi OS has its own.
    if apt-cache show "$name" >/dev/null 2>&1; then wanted="$wanted $name"; fi
  done
  # shellcheck disable=SC2086 # several names
  do_it env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $wanted
}

make_user() {
  if ! id retexo >/dev/null 2>&1; then
    do_it useradd --system --home-dir /var/lib/retexo --no-create-home \
      --shell /usr/sbin/nologin retexo
  fi
  # BlueZ's own D-Bus policy (/etc/dbus-1/system.d/bluetooth.conf) lets this group speak with it.
  do_it usermod --append --groups bluetooth retexo
  do_it install -d -m 0755 /etc/retexo
  do_it install -d -m 0700 -o retexo -g retexo /var/lib/retexo
}

install_program() {
  # Not there either where this was broken off, or the system has got another Python since.
  /opt/retexo/bin/python -P -m pip --version >/dev/null 2>&1 || do_it python3 -m venv /opt/retexo
  # pip unpacks in TMPDIR; /tmp may be in memory, of which torch would take a part.
  unpacking=/opt/retexo/unpacking
  do_it install -d -m 0700 $unpacking
  if [ -z "$wheel" ]; then
    pip wheel --no-deps --wheel-dir $unpacking "$source"
    wheel=$(echo $unpacking/retexo_fl-*.whl)
  fi
  # First what it needs, then the wheel itself, also where its version is the one that is there.
  pip install --upgrade --only-binary=:all: "$wheel[bluetooth]"
  pip install --no-deps --force-reinstall "$wheel"
  do_it rm -rf $unpacking
}

pip() {
  do_it env TMPDIR=$unpacking /opt/retexo/bin/python -P -m pip "$@" --no-cache-dir \
    ${bundle:+--no-index "--find-links=$bundle"}
}

install_files() {
  units=/etc/systemd/system
  do_it install -m 0644 "$source/clients/retexo-agent.service" \
    "$source/clients/retexo-supernode.service" "$source/edge/retexo-bluetooth.service" $units/
  for unit in retexo-agent retexo-supernode; do
    do_it install -d -m 0755 $units/$unit.service.d
    do_it install -m 0644 "$source/edge/$unit.service.d/edge.conf" $units/$unit.service.d/
  done
  do_it install -d -m 0755 /etc/systemd/journald.conf.d
  do_it install -m 0644 "$source/edge/journald.conf" /etc/systemd/journald.conf.d/retexo.conf
  [ -e /etc/retexo/agent.toml ] ||
    do_it install -m 0644 "$source/edge/agent.toml" /etc/retexo/agent.toml
}

# Those of this client, from where its keys were made or another machine sent them.
place_files() {
  [ -n "$files" ] || return 0
  own=$files
  [ ! -d "$files/keys" ] || own=$files/keys
  for file in key.pem agreement-secret; do place $file "$own" -o retexo -m 0600; done
  place certificate.pem "$own" -m 0644
  place supernode-key "$files" -m 0600
  for file in ca.crt roster.toml supernode.env; do place $file "$files" -m 0644; done
  if [ -d "$files/part" ]; then
    # Whole or not at all; the agent keeps the old one open until it is started again.
    do_it rm -rf /var/lib/retexo/part-new
    do_it cp -r "$files/part" /var/lib/retexo/part-new
    do_it chown -R retexo:retexo /var/lib/retexo/part-new
    do_it rm -rf /var/lib/retexo/part
    do_it mv /var/lib/retexo/part-new /var/lib/retexo/part
  fi
}

place() {
  name=$1
  from=$2/$1
  shift 2
  [ ! -e "$from" ] || do_it install "$@" "$from" "/etc/retexo/$name"
}

# The kernel of Raspberry Pi OS keeps memory limits switched off, whatever a unit says.
allow_memory_limits() {
  line=/boot/firmware/cmdline.txt
  if grep -qsw memory /sys/fs/cgroup/cgroup.controllers; then return; fi
  if [ ! -e $line ]; then
    echo "install: this kernel counts no memory by unit, so MemoryMax= has no effect" >&2
  elif ! grep -qw 'cgroup_enable=memory' $line; then
    do_it cp $line $line.before-retexo
    do_it sed -i '1s/ *$/ cgroup_enable=memory/' $line
    reboot="reboot once, for memory limits to hold"
  fi
}

start_services() {
  do_it systemctl daemon-reload
  do_it systemctl restart systemd-journald
  do_it systemctl enable --now bluetooth.service
  # A new adapter may need the reboot first, and Wi-Fi may do.
  do_it systemctl enable --now retexo-bluetooth.service ||
    echo "install: no adapter was switched on; systemctl status retexo-bluetooth says why" >&2
  do_it systemctl enable retexo-agent.service retexo-supernode.service
  missing=""
  for file in key.pem certificate.pem roster.toml supernode-key ca.crt supernode.env; do
    [ -e /etc/retexo/$file ] || missing="$missing /etc/retexo/$file"
  done
  [ -d /var/lib/retexo/part ] || missing="$missing /var/lib/retexo/part"
  if [ -z "$missing" ]; then
    do_it systemctl restart retexo-agent.service retexo-supernode.service
  fi
}

check_machine
check_system
check_size
check_source
[ $dry = yes ] || [ "$(id -u)" = 0 ] || complain "expected to be run as root"
[ $dry = yes ] || [ $complaints = 0 ] || exit 2

reboot=""
install_packages
make_user
install_program
install_files
place_files
allow_memory_limits
start_services

[ -z "$reboot" ] || echo "left to do: $reboot"
[ -z "$missing" ] || echo "left to do: put these in place, then systemctl restart retexo-agent \
retexo-supernode:$missing"
[ $complaints = 0 ] || exit 2
[ $dry = yes ] || echo "installed: /opt/retexo/bin/retexo doctor --config /etc/retexo/agent.toml"
