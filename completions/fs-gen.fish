# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-gen --help; do not edit.
complete -c fs-gen -s h -l help -d 'Print this help message and exit'
complete -c fs-gen -l version -d 'Display program version information and exit'
complete -c fs-gen -l map -r -d 'Use this map (made by fs-resolve build); resolve nothing'
complete -c fs-gen -l out -r -d 'Keep the map of this run here'
complete -c fs-gen -l plugins -r -d 'Serve this plugin folder too, under its own name (repeatable)'
complete -c fs-gen -l serve -r -d 'What the mount serves: all, or only what lies on a remote file system'
complete -c fs-gen -l via -r -d 'Mount namespace (root), user namespace, or direct: no mount, guided to the files'
complete -c fs-gen -l loader -r -d 'Guide ld.so by auditing (exact), or by LD_LIBRARY_PATH where that cannot work'
complete -c fs-gen -l compare -r -d 'Run APP N times without heddle and N times with it, in turn; print the ratio'
complete -c fs-gen -l json -r -d 'Write the report here as JSON'
complete -c fs-gen -s q -l quiet -d 'No report on stderr'
