# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-gen --help; do not edit.
complete -c compat-gen -s h -l help -d 'Print this help message and exit'
complete -c compat-gen -l version -d 'Display program version information and exit'
complete -c compat-gen -s o -l out -r -d 'Write to FILE instead of standard output'
complete -c compat-gen -l from-trace -r -d 'Add the libraries that this fs-record run loaded by dlopen; without BINARY, describe the programs of the run'
complete -c compat-gen -l from-map -r -d 'Take the libraries from this map; without BINARY, describe its programs'
complete -c compat-gen -l rootfs -r -d 'BINARY and its libraries lie in this root file system'
complete -c compat-gen -l push -r -d 'Push the artifact to a registry, and print its reference by digest'
complete -c compat-gen -l attach -r -d 'With --push: attach it to this image in the same repository'
