# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-gen --help; do not edit.
_compat_gen() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version -o --out --from-trace --from-map --rootfs --push --attach'
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _compat_gen compat-gen
