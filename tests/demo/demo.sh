#!/bin/bash
# SPDX-License-Identifier: MIT
# Three programs through fs-gen: `./dev demo` runs this with the build directory.
set -euo pipefail
build=$1
gen=$build/stage/bin/fs-gen
libraries=${HEDDLE_DEMO_LIBRARIES:-500}
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-demo-XXXXXX")
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache

# Open MPI refuses root, and more ranks than cores, unless told otherwise. No network is needed here.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun=(mpirun.openmpi --oversubscribe -n 2)

title() { printf '\n== %s\n' "$*"; }

# failed COMMAND...: how many library paths were tried in vain, in it and its children, by strace.
failed() {
  # A file a process: in one file the calls of several are cut in two, and are not counted.
  mkdir "$work/strace"
  strace -ff -qq --seccomp-bpf -s 4096 -e trace=openat -o "$work/strace/of" "$@" >/dev/null 2>&1
  cat "$work"/strace/of.* | grep -v '/etc/ld.so.preload' | grep -cE 'openat.*\.so[."].* = -1 ENOENT' || true
  rm -r "$work/strace"
}

# shown NAME RUNS COMMAND...: runs it through fs-gen with the report, then RUNS times both ways, then
# once each under strace, which knows nothing of heddle.
shown() {
  local name=$1 runs=$2
  shift 2
  printf '$ fs-gen %s\n' "${*//"$work"\//}"
  "$gen" --json "$work/$name.json" -- "$@"
  "$gen" --compare "$runs" --json "$work/$name.compare.json" -- "$@" >/dev/null 2>"$work/words" || {
    cat "$work/words" >&2
    return 1
  }
  printf '%s %s\n' "$(failed "$@")" "$(failed "$gen" -q -- "$@")" >"$work/$name.failed"
}

title "A program with $libraries libraries in $libraries directories, found by RPATH"
"$build/tests/support/make_farm" --libraries "$libraries" "$work/farm" >/dev/null
cd "$work"
shown farm 5 "$work/farm/app"

title "An MPI program with 100 libraries of its own, 2 ranks under Debian's mpirun"
"$build/tests/support/make_farm" --libraries 100 "$work/solver" >/dev/null
cat >"$work/hello.c" <<'END'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int rank, size, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, their numbers add up to %d\n", size, sum);
  MPI_Finalize();
  return 0;
}
END
link=(-Wl,--no-as-needed -Wl,--disable-new-dtags)
for library in "$work"/solver/lib/*/*.so.1; do
  link+=("$library" "-Wl,-rpath,${library%/*}")
done
mpicc.openmpi -o "$work/hello" "$work/hello.c" "${link[@]}"
shown hello 3 "${mpirun[@]}" "$work/hello"

title "Python, importing NumPy"
shown numpy 5 /usr/bin/python3 -c "import numpy; print('numpy', numpy.__version__)"

title "What it saved"
# Meson needs Python, so it is there.
mkdir -p "$build/bench"
python3 - "$work" "$libraries" >"$build/bench/demo.json" <<'END'
import json, os, platform, sys

work, libraries = sys.argv[1:3]
rows = []
for name, title in [("farm", f"{libraries} libraries by RPATH"), ("hello", "MPI program, 2 ranks"),
                    ("numpy", "python3, import numpy")]:
    plain, guided = map(int, open(f"{work}/{name}.failed").read().split())
    times = json.load(open(f"{work}/{name}.compare.json"))
    rows.append({"program": title, "failed_plain": plain, "failed_guided": guided,
                 "plain_ns": times["plain_ns"], "guided_ns": times["guided_ns"]})
json.dump({"version": 1, "kernel": platform.release(), "machine": platform.machine(),
           "cores": os.cpu_count(), "rows": rows}, sys.stdout, indent=2)
print()
END
"$build/bench/show_demo" "$build/bench/demo.json"
cat <<'END'

A failed look-up is a path that ld.so tried and did not find, in the program and its
children, counted by strace. On a parallel file system each is a message to a server, times
every rank.
END
