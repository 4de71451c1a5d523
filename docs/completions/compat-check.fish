# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-check --help; do not edit.
complete -c compat-check -s h -l help -d 'Print this help message and exit'
complete -c compat-check -l version -d 'Display program version information and exit'
complete -c compat-check -l map -r -d 'Against the libraries of this map'
complete -c compat-check -l rootfs -r -d 'Against this root file system instead of this node'
complete -c compat-check -l json -d 'Print the verdict and its reasons as JSON'
