# SPDX-License-Identifier: MIT
# Made by `./dev completions` from compat-server --help; do not edit.
complete -c compat-server -s h -l help -d 'Print this help message and exit'
complete -c compat-server -l version -d 'Display program version information and exit'
complete -c compat-server -l listen -r -d 'Where to listen (127.0.0.1:50051); beyond this node only with TLS and a token'
complete -c compat-server -l tls-cert -r -d 'Certificate chain, PEM'
complete -c compat-server -l tls-key -r -d 'Its key, PEM'
complete -c compat-server -l token-file -r -d 'Clients must show the token in FILE'
complete -c compat-server -l index -r -d 'Keep the index in DIR instead of the user'\''s cache'
complete -c compat-server -l rootfs -r -d 'Answer for this root file system instead of this node'
complete -c compat-server -l max-request -r -d 'Largest request in bytes (8388608)'
complete -c compat-server -l max-checks -r -d 'Calls at once; more are turned away (64)'
complete -c compat-server -l metrics -r -d 'Serve Prometheus metrics on this loopback address'
complete -c compat-server -l grace -r -d ''
