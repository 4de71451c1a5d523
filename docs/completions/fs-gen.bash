# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-gen --help; do not edit.
_fs_gen() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --map --fallback --out --learn --plugins --serve --slow --fast --tree --tree-exclude --python --stage --budget --via --no-share --loader --no-cache --no-learn --explain --doctor --compare --json --print-env --shell -q --quiet'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --serve) values='all remote' ;;
    --via) values='best private fusermount direct' ;;
    --loader) values='audit env' ;;
    --shell) values='sh fish modulefile json' ;;
  esac
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_gen fs-gen
