# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-ship --help; do not edit.
_fs_ship() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --via --to --min-nodes --timeout --copy-timeout --launch --nodes --job --json -q --quiet'
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_ship fs-ship
