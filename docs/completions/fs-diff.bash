# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-diff --help; do not edit.
_fs_diff() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --matrix --baseline --max-distance --op --by --collapse --map --soname --no-soname --pid --no-pid --temp --no-temp --hash --no-hash --result --no-result --late --no-late --resolved --no-resolved --raw --partial -u --unified -U -c --context -C --summary --color --colour --json --html -q --quiet --times --local --match --mismatch --gap-open --gap-extend'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --by) values='process thread' ;;
    --color|--colour) values='auto always never' ;;
  esac
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_diff fs-diff
