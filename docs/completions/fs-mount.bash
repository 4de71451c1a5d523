# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-mount --help; do not edit.
_fs_mount() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version -f --foreground --on-drift --serve --prefetch --stage --budget --threads --origin-timeout --fallback --signers --log --reload -u --unmount --lazy --stats --json --verify --node --fuse-fd --mount-point --ready-fd --cleanup --leave-tree --keep --listen-fd'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --on-drift) values='refuse warn keep eio' ;;
    --serve) values='all remote' ;;
    --keep) values='private fusermount' ;;
  esac
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_mount fs-mount
