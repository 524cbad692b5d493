#!/usr/bin/env bash
# install-gpu/run.sh COMMAND...: unpacks the bundle into $PLO_GPU_DIR (default
# /tmp/plo) if it is not there yet, and runs the command with its programs on
# the PATH. run_gpu_tests [REGEX] runs the tests. scripts/gpu_bundle makes the
# bundle.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="${PLO_GPU_DIR:-/tmp/plo}"
stamp="$(cksum "$here/bundle.tar.zst")"
if [[ "$(cat "$target/stamp" 2>/dev/null)" != "$stamp" ]]; then
  zstd=(zstd)
  command -v zstd >/dev/null ||
    zstd=(env "LD_LIBRARY_PATH=$here/zstd" "$here/zstd/zstd")
  rm -rf "$target"
  mkdir -p "$target"
  "${zstd[@]}" -dc --long=27 "$here/bundle.tar.zst" | tar -xf - -C "$target"
  echo "$stamp" >"$target/stamp"
fi
# shellcheck source=/dev/null
source "$target/env.sh"
[[ $# -eq 0 ]] || exec "$@"
