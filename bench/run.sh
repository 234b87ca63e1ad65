#!/usr/bin/env bash
# Measures this machine and prints one table: the map beside LibTorch's bare products (and beside the Python
# prototype where KVBRIDGE_PROTOTYPE names its src folder), both planes, fixed cost, concurrency, loading.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

usage() {
  cat <<'EOF'
usage: bash bench/run.sh [--quick] [--no-setup] [--help]

  --quick     64 and 1,024 tokens only, fewer repetitions
  --no-setup  don't install anything first

Leaves JSON and table.md in build/bench. Ratios are worth quoting; times only with the machine they are from. Let
nothing else run. Needs 6 GB of memory and 2 GB of disk.
EOF
}

setup=1 tokens=(64 1024 4096) reps=7
while [ $# -gt 0 ]; do
  case $1 in
    --quick) tokens=(64 1024) reps=3; shift ;;
    --no-setup) setup=0; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

say() { printf '[%4ds] %s\n' "$SECONDS" "$*" >&2; }
[ "$setup" = 0 ] || bash deploy/setup.sh
venv=$(bash deploy/setup.sh --print-venv)
out=build/bench data=build/bench/data bin=build/release
mkdir -p "$data"

say "building"
{ cmake --preset release -DKVBRIDGE_BUILD_BENCH=ON "-DKVBRIDGE_TORCH_DIR=$(echo "$venv"/lib/python3*/site-packages/torch)" &&
  cmake --build $bin --target kvbridged map_bench transfer_bench make_artifact load_bench; } >$out/build.log 2>&1 ||
  { tail -n 40 $out/build.log >&2; exit 1; }

say "the map beside the floor: ${tokens[*]} tokens, $reps repetitions"
$bin/bench/map_bench --tokens "${tokens[@]}" --reps $reps >$out/map.json
# Apart from the floor, whose threads keep spinning and whose operands fill the caches.
say "head-local beside full-head"
$bin/bench/map_bench --no-floor --tokens "${tokens[@]}" --reps $reps >$out/map_alone.json

rm -f $out/prototype.json
if [ -n "${KVBRIDGE_PROTOTYPE:-}" ]; then
  say "the prototype's map"
  env -u PYTHONPATH "$venv/bin/python" bench/prototype_map.py --tokens 64 1024 >$out/prototype.json
fi

say "loading 0.94 GB"
make() { $bin/bench/make_artifact --overwrite "${@:2}" "$data/$1" >/dev/null; }
make load --layers 28 --heads 8 --head-dim 128 --top-k 8 --support full
$bin/bench/load_bench "$data/load" >$out/load.json
rm -rf "$data/load"

say "the inline plane"
make big --layers 28 --heads 8 --head-dim 128 --top-k 1 --support head_local
make in --source-layers 28 --layers 1 --heads 8 --head-dim 128 --top-k 1 --support head_local
make out --source-layers 1 --layers 28 --heads 8 --head-dim 128 --top-k 1 --support head_local
make local --layers 28 --heads 8 --head-dim 128 --top-k 8 --support head_local
make micro --layers 2 --heads 2 --head-dim 64 --top-k 1 --support full
cat >$data/kvbridged.yaml <<EOF
listen: {grpc: ["unix:$data/kvbridged.sock"], admin: "off"}
limits: {max_inflight_bytes: 2GiB}
memory: {socket: "$data/memory.sock"}
drain: {delay: 0s}
routes:
$(for route in big in out local micro; do
  echo "  - {name: $route, artifact: $data/$route, allow_unproven: true, policy: {max_abs: 1000000}}"
done)
EOF
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1  # as the image and the unit set it
$bin/server/kvbridged --config $data/kvbridged.yaml --ports-file $data/ports.json 2>$out/kvbridged.log &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server || true' EXIT
for _ in $(seq 100); do grep -q '"to":"ready"' $out/kvbridged.log && break; sleep 0.1; done
$bin/bench/transfer_bench --server "unix:$data/kvbridged.sock" --route in out big --micro-route micro --reps 25 --pid $server >$out/transfer.json

say "the region plane"
$bin/bench/transfer_bench --server "unix:$data/kvbridged.sock" --route local --plane region --artifact "$data/local" --reps 15 >$out/region.json

"$venv/bin/python" bench/table.py $out | tee $out/table.md
say "done: $out/table.md"
