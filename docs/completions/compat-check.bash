# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-check --help; do not edit.
_compat_check() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --map --rootfs --server --nodes --server-port --ca --token-file --json'
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _compat_check compat-check
