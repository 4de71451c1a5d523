# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-resolve --help; do not edit.
_fs_resolve() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version'
  case ${COMP_WORDS[1]} in
    build) ((COMP_CWORD < 2)) || words='-h --help -o --out --plugins --allow-missing --tree --tree-exclude --python --mpi --json --into --program --at --path --library-path --preload --root' ;;
    explain) ((COMP_CWORD < 2)) || words='-h --help --binds --json' ;;
    lookup) ((COMP_CWORD < 2)) || words='-h --help --view --json' ;;
    mpi) ((COMP_CWORD < 2)) || words='-h --help --list --prefix --root --trace --json' ;;
    pack) ((COMP_CWORD < 2)) || words='-h --help -o --out --trace --add --include --list --json' ;;
    pull) ((COMP_CWORD < 2)) || words='-h --help -o --out --no-cache' ;;
    push) ((COMP_CWORD < 2)) || words='-h --help' ;;
    show) ((COMP_CWORD < 2)) || words='-h --help --json' ;;
    tree) ((COMP_CWORD < 2)) || words='-h --help -p --path --json' ;;
    verify) ((COMP_CWORD < 2)) || words='-h --help --files --json' ;;
    why) ((COMP_CWORD < 2)) || words='-h --help --json' ;;
  esac
  ((COMP_CWORD != 1)) || words+=' build explain lookup mpi pack pull push show tree verify why'
  if [[ $word == -* || $COMP_CWORD == 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_resolve fs-resolve
