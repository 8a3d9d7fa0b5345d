#!/bin/busybox sh
# First process of the virtual machine: this machine's tree, read-only, under a layer in memory;
# then the command that the host left in the folder that both share. The last thing it does is to
# tell its end to the emulator: 33 as the emulator's exit code is success, 35 a failure.
B=/bin/busybox
$B mkdir -p /proc /sys /dev /lower /rw /root
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in $($B cat /modules/order); do
  $B insmod "/modules/$module" || echo "retexo-vm: no module $module"
done

share="trans=virtio,version=9p2000.L,msize=1048576"
$B mount -t 9p -o "$share,cache=loose,ro" root /lower
$B mount -t tmpfs -o mode=755 memory /rw
$B mkdir -p /rw/upper /rw/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work over /root
$B mkdir -p /root/proc /root/sys /root/dev /root/run /root/out
for folder in proc sys dev; do $B mount -o move "/$folder" "/root/$folder"; done
$B mkdir -p /root/dev/shm /root/dev/pts
$B mount -t tmpfs memory /root/dev/shm
$B mount -t devpts pts /root/dev/pts
$B mount -t tmpfs -o mode=755 memory /root/run
$B mkdir -p /root/run/tmp /root/run/home /root/run/lock
$B mount -t 9p -o "$share,cache=none" out /root/out
$B ifconfig lo 127.0.0.1 up

$B env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  HOME=/run/home TMPDIR=/run/tmp LANG=C.UTF-8 \
  $B chroot /root /bin/sh /out/command.sh >/root/out/output 2>&1
status=$?
echo $status >/root/out/status
$B sync
end='\x11'
[ $status -eq 0 ] && end='\x10'
printf "$end" | $B dd of=/root/dev/port bs=1 seek=244 conv=notrunc 2>/dev/null
$B poweroff -f
