#!/bin/sh
# This interpreter; an environment that it makes has what this one has, as if pip had installed it.
@PYTHON@ "$@" || exit $?
[ "$1 $2" = "-m venv" ] || exit 0
set -eu
site=$(echo "$3"/lib/python3*/site-packages)
# Its own first, and none of the .pth files there: one of them leads to a source tree.
echo @SITE@ > "$site/first.pth"
rm -rf "$site"/setuptools* "$site"/pkg_resources
for name in flwr flower-superlink flower-supernode flower-superexec flwr-serverapp flwr-clientapp; do
  [ -e "@PROGRAMS@/$name" ] || continue
  printf '#!/bin/sh\nexec %s/bin/python %s "$@"\n' "$3" "@PROGRAMS@/$name" > "$3/bin/$name"
  chmod 755 "$3/bin/$name"
done
