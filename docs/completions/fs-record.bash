# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-record --help; do not edit.
_fs_record() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --out --out-dir --op --io --scope --json --summary --slim --trace --via -q --quiet'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --via) values='best mount user proot' ;;
  esac
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_record fs-record
