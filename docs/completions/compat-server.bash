# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-server --help; do not edit.
_compat_server() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version --listen --tls-cert --tls-key --token-file --index --library-dir --rootfs --user --max-request --max-checks --metrics --timeout --stream-idle --grace'
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _compat_server compat-server
