#!/bin/sh
# Make a folder of wheels from which a machine without a package index installs retexo-fl.
#
#   edge/bundle.sh [--machine aarch64|x86_64] [--python 3.11] [--extra NAME]... FOLDER [OPTION...]
#
# FOLDER gets the wheel of this clone and everything that it needs there, chosen as pip would choose
# on that machine: a Raspberry Pi's bundle can be made on any Linux. On the machine itself:
#
#   sudo edge/install.sh --bundle FOLDER                                     # a Raspberry Pi
#   pip install --no-index --find-links FOLDER 'retexo-fl[EXTRA]'            # any other
#
#   --machine  its processor; default: aarch64, a Raspberry Pi
#   --python   its Python; default: 3.11, that of Debian 12 (13 has 3.13)
#   --extra    an extra of retexo-fl, may be repeated; default for aarch64: bluetooth
#   OPTION...  more for pip and uv, such as --extra-index-url ADDRESS for PyTorch's CPU build
#              (docs/installation.md); without one x86_64 gets CUDA, gigabytes of it
#
# It needs python3 with pip, and uv (pip install uv): pip itself judges `platform_machine` of the
# machine that it runs on.
set -eu
umask 022

help() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
}

fail() {
  echo "bundle: $1" >&2
  exit 2
}

machine=aarch64
python=3.11
extras=""
while [ $# -gt 0 ]; do
  case $1 in
    --machine | --python | --extra)
      [ $# -ge 2 ] || fail "$1: expected its value"
      case $1 in
        --machine) machine=$2 ;;
        --python) python=$2 ;;
        --extra) extras="$extras --extra=$2" ;;
      esac
      shift 2
      ;;
    -h | --help) help ;;
    -*) fail "'$1': expected --machine, --python, --extra or FOLDER" ;;
    *) break ;;
  esac
done
case $machine in
  aarch64) extras=${extras:---extra=bluetooth} ;;
  x86_64) ;;
  *) fail "--machine '$machine': expected aarch64 or x86_64" ;;
esac
case $python in
  3.1[1-9]) ;;
  *) fail "--python '$python': expected 3.11 or later" ;;
esac
[ $# -ge 1 ] || fail "expected FOLDER"
folder=$1
shift
[ ! -e "$folder" ] || fail "$folder: exists; expected a new folder"
command -v uv >/dev/null || fail "uv: not found; pip install uv"
source=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)

mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.making-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM

# What is needed, by name and version, as on the machine asked for.
# shellcheck disable=SC2086 # a word for each extra
uv pip compile --quiet --no-header --no-annotate --python-version "$python" \
  --python-platform "$machine-manylinux_2_28" --only-binary :all: --index-strategy unsafe-best-match \
  $extras "$@" "$source/pyproject.toml" --output-file "$work/needed.txt"

# pip takes names of platforms literally: those of every C library up to Debian 12's.
platforms="--platform manylinux2014_$machine"
minor=17
while [ $minor -le 36 ]; do
  platforms="$platforms --platform manylinux_2_${minor}_$machine"
  minor=$((minor + 1))
done
mkdir "$work/wheels"
# shellcheck disable=SC2086 # a word for each platform
python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
  --python-version "$python" $platforms "$@" --requirement "$work/needed.txt" --dest "$work/wheels"
python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/wheels" "$source"
chmod 0755 "$work/wheels"
mv "$work/wheels" "$folder"
echo "$folder: $(find "$folder" -name '*.whl' | wc -l) wheels for $machine, Python $python, \
$(du -sm "$folder" | cut -f1) MB"
