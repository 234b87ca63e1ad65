#!/usr/bin/env bash
# Generates src/kvbridge/v1 from proto/, with Debian's protoc 3.21 and gRPC plugin: code of that age runs
# on every protobuf runtime from 4.21 on. `--check` compares instead of writing and fails on a difference.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
proto="${here}/../../proto"
out="${here}/src"

usage() { echo "usage: generate_protos.sh [--check]" >&2; exit 2; }

generate() {  # $1: folder that receives kvbridge/v1
  protoc -I "${proto}" --python_out="$1" --pyi_out="$1" "${proto}"/kvbridge/v1/*.proto
  # Only these files hold services.
  protoc -I "${proto}" --grpc_python_out="$1" \
    --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" \
    "${proto}"/kvbridge/v1/{admin,memory,transfer}.proto
}

case "${1:-}" in
  "") generate "${out}" ;;
  --check)
    fresh="$(mktemp -d)"
    trap 'rm -rf "${fresh}"' EXIT
    generate "${fresh}"
    diff -r --exclude=__init__.py --exclude=__pycache__ "${fresh}/kvbridge/v1" "${out}/kvbridge/v1"
    ;;
  *) usage ;;
esac
