#!/usr/bin/env bash
# Sets up, builds and runs every test: C++ (ctest), Python (pytest), lint. Twenty-four minutes on two
# cores with a part-warm ccache. Prints ctest's and pytest's closing lines last.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

usage() {
  cat <<'EOF'
usage: bash tests/run.sh [--preset NAME] [--no-setup] [--help]

  --preset NAME  release (default, shares its build with deploy/demo.sh), ci (warnings are errors, headers
                 compiled alone), dev, asan, tsan (these two run the C++ suite only)
  --no-setup     don't install anything first
EOF
}

preset=release setup=1
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?"--preset needs a name"}; shift 2 ;;
    --no-setup) setup=0; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

started=$SECONDS
say() { printf '[%4ds] %s\n' $((SECONDS - started)) "$*" >&2; }

[ "$setup" = 0 ] || bash deploy/setup.sh
venv=$(bash deploy/setup.sh --print-venv)
export KVBRIDGE_VENV=$venv PATH=$venv/bin:$PATH
build=build/$preset
jobs=$(nproc)

bench=ON
case $preset in asan | tsan) bench=OFF ;; esac
export UBSAN_OPTIONS="print_stacktrace=1 ${UBSAN_OPTIONS:-}"

say "configuring $build"
mkdir -p build
cmake --preset "$preset" -DKVBRIDGE_BUILD_TESTS=ON -DKVBRIDGE_BUILD_BENCH=$bench \
  "-DKVBRIDGE_TORCH_DIR=$(echo "$venv"/lib/python3*/site-packages/torch)" >"$build.configure.log" 2>&1 ||
  { cat "$build.configure.log" >&2; exit 1; }
say "building (-j$jobs)"
cmake --build "$build" -j "$jobs" | awk 'NR % 40 == 0 || /FAILED|error|warning/ { print; fflush() }' >&2
case $preset in
  ci) say "checking that headers stand alone"
      cmake --build "$build" -j "$jobs" --target all_verify_interface_header_sets |
        awk '/FAILED|error|warning/ { print; fflush() }' >&2 ;;
esac

status=0
say "ctest"
ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error 2>&1 | tee "$build/ctest.log" | grep -vE '^ +Start ' || status=1

case $preset in
  asan | tsan) ;;
  *)
    say "pytest"
    export KVBRIDGED=$root/$build/server/kvbridged KVBRIDGE_CLI=$root/$build/client/cli/kvbridge
    export PYTHONPATH=$root/client/python/src KVBRIDGE_TRANSFORMERS4=$venv/transformers4
    export KVBRIDGE_OPERATIONS=$venv/operations
    "$venv/bin/python" -m pytest tests/python -q -p no:cacheprovider 2>&1 | tee "$build/pytest.log" || status=1
    ;;
esac

say "closing lines"
grep -E 'tests passed|tests failed' "$build/ctest.log" || true
[ ! -f "$build/pytest.log" ] || tail -n 1 "$build/pytest.log"
exit $status
