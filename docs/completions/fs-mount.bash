# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-mount --help; do not edit.
_fs_mount() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version -f --foreground --on-drift --serve --prefetch --stage --budget --threads --origin-timeout --log --reload -u --unmount --lazy --stats --verify --node --fuse-fd --mount-point --ready-fd --cleanup --leave-tree --keep --hand-over --listen-fd'
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_mount fs-mount
