# Sourced: makes the bundle's programs run on this machine. The bundle brings
# all but CUDA, NCCL and cuDNN, which are looked for here.
plo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PLO_BINARY_DIR="$plo_root"
export PATH="$plo_root/bin:$PATH"

plo_path="$plo_root/lib"
shopt -s nullglob
plo_folders=(
  /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64
  /usr/local/cuda/targets/x86_64-linux/lib
  /usr/lib/x86_64-linux-gnu /usr/local/lib
  /opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib
  /opt/*/lib/python3*/site-packages/nvidia/*/lib
  /usr/local/lib/python3*/{site,dist}-packages/nvidia/*/lib
  /usr/lib/python3*/{site,dist}-packages/nvidia/*/lib
  /usr/local/nvidia/lib64
)
shopt -u nullglob
for plo_library in $(cat "$plo_root/lib/cuda_libraries"); do
  ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$plo_library " && continue
  plo_found=""
  for plo_folder in "${plo_folders[@]}"; do
    [[ -e "$plo_folder/$plo_library" ]] && plo_found="$plo_folder" && break
  done
  if [[ -z "$plo_found" ]]; then
    echo "warning: $plo_library is not on this machine" >&2
  elif [[ ":$plo_path:" != *":$plo_found:"* ]]; then
    plo_path="$plo_path:$plo_found"
  fi
done
export LD_LIBRARY_PATH="$plo_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset plo_library plo_found plo_folder plo_folders plo_path plo_root
