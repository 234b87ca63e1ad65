#!/usr/bin/env bash
# Builds the image of the Dockerfile for real, without Docker, and runs what is in it: buildah in a chroot, on a base of
# the same Debian made by debootstrap. Needs root, buildah, debootstrap, and a Debian mirror.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

usage() {
  cat <<'EOF'
usage: bash tests/image/image_test.sh [--prebuilt BUILD] [--work DIR] [--help]

  --prebuilt BUILD  take kvbridged and kvbridge of this build folder; without it the image's first stage compiles them
  --work DIR        where the base, the storage and the logs lie, to be used again (default: a temporary folder)

It then runs the image's kvbridged from its own root file system, mounted read-only, as a user that exists nowhere, and
asks it for its health and for a transfer. Exits 77 where it can't run.
EOF
}

prebuilt='' work=''
while [ $# -gt 0 ]; do
  case $1 in
    --prebuilt) prebuilt=${2:?"--prebuilt needs a folder"}; shift 2 ;;
    --work) work=${2:?"--work needs a folder"}; shift 2 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

say() { printf 'image_test: %s\n' "$*" >&2; }
skip() { say "skipped: $*"; exit 77; }
die() { say "$*"; exit 1; }

[ "$(id -u)" = 0 ] || skip "not root"
for program in buildah debootstrap unshare; do command -v "$program" >/dev/null || skip "no $program"; done
unshare -m true 2>/dev/null || skip "no mount namespaces"
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)
storage=(--storage-driver vfs --root "$work/storage" --runroot "$work/run")
user=54321 # in no /etc/passwd
bah() { local verb=$1; shift; buildah "${storage[@]}" "$verb" "$@"; }

make_base() {
  if [ ! -e "$work/base/.complete" ]; then
    say "debootstrap"
    debootstrap --variant=minbase bookworm "$work/base" >"$work/debootstrap.log"
    # What this host needs to reach its mirror, and security updates as debian:bookworm has them.
    cp -a /etc/apt/apt.conf.d/. "$work/base/etc/apt/apt.conf.d/"
    cp -a /etc/apt/sources.list.d/. "$work/base/etc/apt/sources.list.d/"
    touch "$work/base/.complete"
  fi
  bah images localhost/base >/dev/null 2>&1 || {
    local container
    container=$(bah from scratch)
    cp -a "$work/base/." "$(bah mount "$container")/"
    bah umount "$container" >/dev/null
    bah commit --rm --quiet "$container" localhost/base >/dev/null
  }
}

# Without the first stage: its outputs come from a folder of the context instead.
prebuilt_context() {
  local out=$work/context/out
  rm -rf "$work/context"
  install -D -s -t "$out/usr/bin" "$prebuilt/server/kvbridged" "$prebuilt/client/cli/kvbridge"
  mkdir -p "$out/usr/share/doc/kvbridge"
  python3 deploy/sbom.py --version 0.1.0 "$out"/usr/bin/* >"$out/usr/share/doc/kvbridge/kvbridge.cdx.json"
  python3 deploy/sbom.py --packages "$out"/usr/bin/* >"$out/usr/share/doc/kvbridge/runtime-packages"
  sed -e '/^FROM ${BASE} AS builder/,/^FROM ${RUNTIME} AS runtime/{/^FROM ${RUNTIME}/!d}' \
      -e 's|^COPY --from=builder /out/ /|COPY out/ /|' Dockerfile >"$work/context/Dockerfile"
}

build() {
  local context=$root
  if [ -n "$prebuilt" ]; then
    prebuilt_context
    context=$work/context
  fi
  say "buildah (log: $work/build.log)"
  bah build --isolation chroot --pull-never --layers=false --format docker --tag localhost/kvbridge \
    --build-arg BASE=localhost/base --build-arg RUNTIME=localhost/base \
    --build-arg REVISION="$(git rev-parse --short=12 HEAD)" --build-arg CREATED="$(date -u +%FT%TZ)" \
    "$context" >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log" >&2; die "the build failed"; }
}

check_configuration() {
  bah inspect --type image localhost/kvbridge | python3 -c '
import json, sys
config = json.load(sys.stdin)["Docker"]["config"]
expected = {"User": "65532:65532", "Entrypoint": ["kvbridged"], "StopSignal": "SIGTERM"}
assert {key: config[key] for key in expected} == expected, config
assert config["Healthcheck"]["Test"][:3] == ["CMD", "kvbridge", "health"], config["Healthcheck"]
labels = {name.removeprefix("org.opencontainers.image.") for name in config["Labels"]}
wanted = "title description version revision created source documentation licenses base.name base.digest".split()
assert labels >= set(wanted), labels
assert len(config["Labels"]["org.opencontainers.image.revision"]) == 12
'
  say "user, entry point, stop signal, health check and labels are as they should be"
}

# In a mount namespace of its own: the image's root, read-only; /run/test for sockets and results; the test's data.
in_image() {
  unshare -m sh -euc '
    rootfs=$1 scratch=$2 data=$3 user=$4; shift 4
    mount --bind "$rootfs" "$rootfs"
    mount -t tmpfs tmpfs "$rootfs/run"
    mount -t proc proc "$rootfs/proc"
    mkdir -p "$rootfs/run/test" "$rootfs/run/data"
    mount --bind "$scratch" "$rootfs/run/test"
    mount --bind -o ro "$data" "$rootfs/run/data"
    mount -o remount,ro,bind "$rootfs"
    exec chroot --userspec="$user:0" --groups= "$rootfs" "$@"
  ' in_image "$rootfs" "$work/scratch" "$root/tests/data/family" "$user" "$@"
}

run_it() {
  rm -rf "$work/scratch"
  mkdir -p "$work/scratch"
  local venv
  venv=$(bash deploy/setup.sh --print-venv)
  PYTHONPATH=client/python/src:tests/python "$venv/bin/python" - "$work/scratch/in.safetensors" <<'EOF'
import sys

import numpy as np
from conftest import family_spec, random_cache
from kvbridge import CacheFile, write_cache

write_cache(sys.argv[1], CacheFile(family_spec("small"), *random_cache(64), np.arange(64)))
EOF
  cat >"$work/scratch/kvbridged.yaml" <<'EOF'
listen: {grpc: ["unix:/run/test/kvbridged.sock"], admin: "off"}
drain: {delay: 0s, deadline: 5s}
routes:
  - name: pair
    artifact: /run/data/artifacts/prototype-small-to-large-k4-bf16
    source_config: /run/data/small/config.json
    target_config: /run/data/large/config.json
    allow_unproven: true
EOF
  chown -R "$user:0" "$work/scratch"
  in_image kvbridged --config /run/test/kvbridged.yaml >"$work/kvbridged.log" 2>&1 &
  local server=$! tries=0
  until in_image kvbridge health --server unix:/run/test/kvbridged.sock >"$work/health.txt" 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] && kill -0 $server 2>/dev/null || { cat "$work/kvbridged.log" "$work/health.txt" >&2; die "not healthy"; }
    sleep 0.1
  done
  say "healthy as user $user on a read-only root: $(grep pair "$work/health.txt" | tr -s ' ')"
  in_image kvbridge transfer --server unix:/run/test/kvbridged.sock --route pair --in /run/test/in.safetensors \
    --out /run/test/out.safetensors --fail-on-fallback >"$work/transfer.txt"
  [ -s "$work/scratch/out.safetensors" ] || die "the transfer left nothing"
  say "a transfer was applied"
  if in_image sh -c ': >/usr/bin/written' 2>/dev/null; then die "the root file system can be written"; fi
  kill -TERM "$(pgrep -P $server)" # the job is a shell around it
  wait $server || die "kvbridged exited with $?"
  say "it stopped at SIGTERM, with status 0"
}

check_parts() {
  python3 - "$rootfs" <<'EOF'
import json
import pathlib
import sys

rootfs = pathlib.Path(sys.argv[1])
parts = json.loads((rootfs / "usr/share/doc/kvbridge/kvbridge.cdx.json").read_text())["components"]
status = (rootfs / "var/lib/dpkg/status").read_text()
needed = (rootfs / "usr/share/doc/kvbridge/runtime-packages").read_text().split()
missing = [name for name in needed if f"Package: {name}\n" not in status]
assert not missing, missing
assert set(needed) <= {part["name"] for part in parts}
assert not (rootfs / "usr/bin/python3").exists() and not list((rootfs / "var/lib/apt/lists").iterdir())
EOF
  say "the parts list is in it; so is every package on it, and no Python"
}

make_base
build
check_configuration
container=$(bah from --pull-never localhost/kvbridge)
rootfs=$(bah mount "$container")
check_parts
run_it
say "size: $(du -sm "$rootfs" | cut -f1) MiB, of which the base has $(du -sm "$work/base" | cut -f1)"
bah rm "$container" >/dev/null
