# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-ship --help; do not edit.
complete -c fs-ship -s h -l help -d 'Print this help message and exit'
complete -c fs-ship -l version -d 'Display program version information and exit'
complete -c fs-ship -l via -r -d 'What copies: sbcast (default), shared (no copy, only the check), registry:REFERENCE, or a command'
complete -c fs-ship -l to -r -d 'A local directory of each node (default: /tmp)'
complete -c fs-ship -l min-nodes -r -d 'Succeed if this many nodes have it (default: all)'
complete -c fs-ship -l timeout -r -d 'Give up on nodes that do not answer for so long (default: 60)'
complete -c fs-ship -l copy-timeout -r -d 'End an engine that takes longer (default: 60, and 1 for each 10 MB)'
complete -c fs-ship -l launch -r -d 'Without Slurm: a command that starts the words after it once a node'
complete -c fs-ship -l nodes -r -d 'The nodes (default: those of the Slurm job)'
complete -c fs-ship -l job -r -d 'The job'\''s id (default: $SLURM_JOB_ID)'
complete -c fs-ship -l json -r -d 'Write a report in JSON to FILE; - is standard output'
complete -c fs-ship -s q -l quiet -d 'Report failures only'
