# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-record --help; do not edit.
_fs_record() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --out --out-dir --op --io --scope --json --summary --slim --trace --via -q --quiet'
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_record fs-record
