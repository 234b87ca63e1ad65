#!/usr/bin/env bash
# Shows what kvbridge does, on real models and held-out text: installs what it needs, builds, starts kvbridged,
# switches from a small model to its larger sibling in mid-prompt, and measures what that costs in quality.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

usage() {
  cat <<'EOF'
usage: bash deploy/demo.sh [--no-setup] [--build DIR] [--passages N] [--help]

  --no-setup    don't install anything first
  --build DIR   use the binaries of this build folder and build nothing (default: build/release, built)
  --passages N  held-out passages to measure on (default: 24)

Starts a server of its own on a unix socket and stops it again. Leaves build/demo/result.html and result.json.
EOF
}

setup=1 build='' passages=24
while [ $# -gt 0 ]; do
  case $1 in
    --no-setup) setup=0; shift ;;
    --build) build=${2:?"--build needs a folder"}; shift 2 ;;
    --passages) passages=${2:?"--passages needs a number"}; shift 2 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

say() { printf '%s\n' "$*" >&2; }

[ "$setup" = 0 ] || bash deploy/setup.sh
venv=$(bash deploy/setup.sh --print-venv)

if [ -z "$build" ]; then
  build=build/release
  say "building kvbridged and kvbridge in $build"
  mkdir -p build
  options=()
  [ -f "$build/CMakeCache.txt" ] || options=(-DKVBRIDGE_BUILD_TESTS=OFF -DKVBRIDGE_BUILD_BENCH=OFF)
  { cmake --preset release "${options[@]}" &&
    cmake --build "$build" --target kvbridged kvbridge; } >build/demo-build.log 2>&1 ||
    { tail -n 40 build/demo-build.log >&2; exit 1; }
fi

PYTHONPATH=$root/client/python/src "$venv/bin/python" deploy/demo/demo.py \
  --kvbridged "$build/server/kvbridged" --cli "$build/client/cli/kvbridge" \
  --passages "$passages" --out build/demo &
demo=$!
# However this script ends, so does the demo, and with it the server.
trap 'kill "$demo" 2>/dev/null || true; wait "$demo" || true' EXIT
wait "$demo"
