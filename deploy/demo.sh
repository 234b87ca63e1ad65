#!/usr/bin/env bash
# Shows what kvbridge does, on real models and held-out text: installs what it needs, builds, starts kvbridged,
# switches from a small model to its larger sibling in mid-prompt, and measures what that costs in quality.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
most=38 # passages of 512 tokens in the first 400,000 characters of the text

usage() {
  cat <<END
usage: bash deploy/demo.sh [--no-setup] [--build DIR] [--passages N] [--help]

  --no-setup    don't install anything first
  --build DIR   use the binaries of this build folder and build nothing (default: build/release, built)
  --passages N  held-out passages to measure on, 1 to $most (default: 24)

Starts a server of its own on a unix socket and stops it again. Leaves build/demo/result.html and result.json, and
those of an earlier run in place until it has succeeded.
END
}

say() { printf '%s\n' "$*" >&2; }
refuse() { say "deploy/demo.sh: $*"; exit 2; }

setup=1 build='' passages=24
while [ $# -gt 0 ]; do
  case $1 in
    --no-setup) setup=0; shift ;;
    --build) [ -n "${2:-}" ] || refuse "--build: expected a folder"; build=$2; shift 2 ;;
    --passages) [ -n "${2:-}" ] || refuse "--passages: expected a number"; passages=$2; shift 2 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
if [[ ! $passages =~ ^[1-9][0-9]?$ || $passages -gt $most ]]; then
  refuse "--passages: expected 1 to $most, got $passages"
fi
if [ -n "$build" ]; then
  for binary in server/kvbridged client/cli/kvbridge; do
    [[ -f $build/$binary && -x $build/$binary ]] || refuse "--build $build: expected a binary $binary in it"
  done
fi

[ "$setup" = 0 ] || bash deploy/setup.sh
venv=$(bash deploy/setup.sh --print-venv)

if [ -z "$build" ]; then
  build=build/release log=build/demo-build.log
  say "building kvbridged and kvbridge in $build (minutes the first time; log: $log)"
  mkdir -p build
  options=()
  [ -f "$build/CMakeCache.txt" ] || options=(-DKVBRIDGE_BUILD_TESTS=OFF -DKVBRIDGE_BUILD_BENCH=OFF)
  { cmake --preset release "${options[@]}" >"$log" 2>&1 &&
    cmake --build "$build" --target kvbridged kvbridge 2>&1 | tee -a "$log" |
      awk 'NR % 40 == 0 { print; fflush() }' >&2; } ||
    { tail -n 40 "$log" >&2; exit 1; }
fi

PYTHONPATH=$root/client/python/src "$venv/bin/python" deploy/demo/demo.py \
  --kvbridged "$build/server/kvbridged" --cli "$build/client/cli/kvbridge" \
  --passages "$passages" --out build/demo &
demo=$!
# However this script ends, so does the demo, and with it the server.
trap 'kill "$demo" 2>/dev/null || true; wait "$demo" || true' EXIT
wait "$demo"
