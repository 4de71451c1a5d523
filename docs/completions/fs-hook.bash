# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-hook --help; do not edit.
_fs_hook() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --policy) values='enforce warn' ;;
    --policy) values='enforce warn' ;;
    --runtime) values='podman runc crun' ;;
    --policy) values='enforce warn' ;;
    --policy) values='enforce warn' ;;
    --policy) values='enforce warn' ;;
  esac
  case ${COMP_WORDS[1]} in
    bundle) ((COMP_CWORD < 2)) || words='-h --help --program --policy --cache-limit --node --timeout --cache --at --mpi --log --stage' ;;
    cdi) ((COMP_CWORD < 2)) || words='-h --help --program --policy --cache-limit --node --timeout --cache --at --mpi --log --stage' ;;
    install) ((COMP_CWORD < 2)) || words='-h --help --runtime --dir --always --allow-annotations --program --policy --cache-limit --node --timeout --cache --at --mpi --log --stage' ;;
    oci) ((COMP_CWORD < 2)) || words='-h --help --program --policy --cache-limit --node --timeout --cache --at --mpi --log --stage --always --allow-annotations --hook-file' ;;
    run) ((COMP_CWORD < 2)) || words='-h --help --rootfs --volume --env --chdir --engine --program --policy --cache-limit --node --timeout --cache --at --mpi' ;;
    verify) ((COMP_CWORD < 2)) || words='-h --help --bundle --rootfs --program --timeout --json --cache --at --mpi' ;;
  esac
  ((COMP_CWORD != 1)) || words+=' bundle cdi install oci run verify'
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* || $COMP_CWORD == 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_hook fs-hook
