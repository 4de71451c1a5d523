#!/bin/bash
# SPDX-License-Identifier: MIT
# Three programs through fs-gen: `./dev demo` runs this with the build folder.
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
  strace -f -qq --seccomp-bpf -s 4096 -e trace=openat -o "$work/strace" "$@" >/dev/null 2>&1
  grep -v '/etc/ld.so.preload' "$work/strace" | grep -cE 'openat.*\.so[."].* = -1 ENOENT' || true
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
"$build/tests/support/make_farm" --libraries 100 --prefix libsolver "$work/solver" >/dev/null
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
python3 - "$work" "$libraries" <<'END'
import json, statistics, sys

work, libraries = sys.argv[1:3]
rows = [("farm", f"{libraries} libraries by RPATH"), ("hello", "MPI program, 2 ranks"),
        ("numpy", "python3, import numpy")]
print(f"{'':26}{'failed look-ups':>24}{'whole run, ms':>22}{'':>9}")
print(f"{'program':26}{'without':>14}{'with':>10}{'without':>13}{'with':>9}{'faster':>9}")
for name, title in rows:
    without, ours = map(int, open(f"{work}/{name}.failed").read().split())
    times = json.load(open(f"{work}/{name}.compare.json"))
    plain = statistics.median(times["plain_ns"]) / 1e6
    guided = statistics.median(times["guided_ns"]) / 1e6
    print(f"{title:26}{without:>14,}{ours:>10,}{plain:>13.1f}{guided:>9.1f}{plain / guided:>8.1f}x")
print("\nA failed look-up is a path that ld.so tried and did not find, in the program and its"
      "\nchildren, counted by strace. Here each costs about 2 us; on a parallel file system it is a"
      "\nmessage to a server, times every rank.")
END
