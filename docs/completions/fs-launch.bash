# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-launch --help; do not edit.
_fs_launch() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --profile --map --ship --stage --slow --fast --tree --python --via --image --backend --source --hold --hold-id --hold-limit --tool --on-tool-exit --report --job --dry-run -q --quiet'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --via) values='best private fusermount direct' ;;
    --backend) values='auto podman charliecloud bare docker apptainer singularity shifter' ;;
    --hold) values='agent exec' ;;
    --on-tool-exit) values='release kill' ;;
  esac
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_launch fs-launch
