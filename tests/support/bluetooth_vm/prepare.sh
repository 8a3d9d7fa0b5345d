# Sourced by the guest's command: functions that bring up what a test needs, each within a bound.

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
  tries=$(($1 * 10))
  shift
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo "guest: in vain: $*" >&2; return 1; }
    sleep 0.1
  done
}

# Two controllers of one air: hci0 00:AA:01:00:00:00 and hci1 00:AA:01:01:00:01.
start_adapters() {
  btvirt -l2 >/run/btvirt.log 2>&1 &
  echo $! >/run/btvirt.pid
  wait_for 30 test -e /sys/class/bluetooth/hci1
  for adapter in hci0 hci1; do
    hciconfig $adapter up || true
    wait_for 30 is_up $adapter
    # With secure pairing on, and nobody to answer for it, a connection waits for ever.
    hciconfig $adapter sspmode 0
    hciconfig $adapter piscan
  done
}

is_up() {
  hciconfig "$1" | grep -q "UP RUNNING"
}

start_bluetoothd() {
  mkdir -p /run/dbus
  dbus-daemon --system --fork --nopidfile
  bluetoothd=/usr/libexec/bluetooth/bluetoothd
  [ -x $bluetoothd ] || bluetoothd=/usr/lib/bluetooth/bluetoothd
  [ -x $bluetoothd ] || bluetoothd=/usr/sbin/bluetoothd
  $bluetoothd -n >/run/bluetoothd.log 2>&1 &
  echo $! >/run/bluetoothd.pid
  wait_for 30 busctl_sees_bluez
}

busctl_sees_bluez() {
  dbus-send --system --print-reply --dest=org.bluez / org.freedesktop.DBus.Introspectable.Introspect
}
