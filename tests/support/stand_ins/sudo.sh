#!/bin/sh
# sudo [-u USER] COMMAND: its own PATH, none of the caller's variables but pip's.
user=root
if [ "$1" = -u ]; then
  user=$2
  shift 2
fi
exec setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups env -i \
  PATH=/mnt/stand_ins:/usr/sbin:/usr/bin:/sbin:/bin HOME="$(getent passwd "$user" | cut -d: -f6)" \
  OMP_NUM_THREADS=1 PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0 "$@"
