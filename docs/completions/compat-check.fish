# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-check --help; do not edit.
complete -c compat-check -s h -l help -d 'Print this help message and exit'
complete -c compat-check -l version -d 'Display program version information and exit'
complete -c compat-check -l map -r -d 'Check against the libraries of this map'
complete -c compat-check -l rootfs -r -d 'Check against this root file system instead of this node'
complete -c compat-check -l server -r -d 'Ask the compat-server there'
complete -c compat-check -l nodes -r -d 'Ask the compat-servers of these nodes which can run it'
complete -c compat-check -l server-port -r -d 'Port of names without one (50051)'
complete -c compat-check -l ca -r -d 'Talk TLS, with servers whose certificates this authority signed'
complete -c compat-check -l token-file -r -d 'Send the token in FILE to the server'
complete -c compat-check -l json -d 'Print the verdict and its reasons as JSON'
