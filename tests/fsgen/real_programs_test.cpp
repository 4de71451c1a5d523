// SPDX-License-Identifier: MIT
// Installed programs print and exit the same with and without fs-gen, in the first run and in those
// that have its answer from the cache; and what a run has learned leaves ld.so nothing to look for.

#include "base/find_program.hpp"
#include "tests/fsgen/run_fixture.hpp"

namespace heddle::test {
namespace {

struct Program {
  const char* name;
  const char* needs;  ///< programs and files, by blanks
  /// For bash, in the suite's directory. $H is fs-gen or nothing; $T a directory of this run.
  const char* line;
  bool reports = true;       ///< fs-gen is there to the end
  const char* unknown = "";  ///< why ld.so still looks for something in vain
};

/// Where a line prints addresses, process IDs or times, it replaces them.
#define WITHOUT_NUMBERS \
  " 2>&1 | sed -E 's/==[0-9]+==/==P==/;s/0x[0-9a-f]+/A/g;s/(process |pid=)[0-9]+/\\1P/'"

const Program kPrograms[] = {
    // Languages and their extensions.
    {"perl", "perl",
     "$H perl -MPOSIX=floor -MList::Util=sum -MData::Dumper -MSocket -e "
     "'print sum(1..9), floor(2.5), Dumper([1]), length(inet_aton(\"127.0.0.1\")); exit 4'"},
    {"python", "python3",
     "$H python3 -c 'import json, ssl, sqlite3, ctypes; print(json.dumps(1))'"},
    {"venv", "python3", "$H venv/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'"},
    {"numpy", "python3 /usr/lib/python3/dist-packages/numpy",
     "$H python3 -c 'import numpy; print(numpy.linalg.inv([[2, 0], [0, 4]]))'"},
    {"scipy", "python3 /usr/lib/python3/dist-packages/scipy",
     "$H python3 -c 'import scipy.stats, scipy.linalg as l; print(scipy.stats.norm.cdf(1.5), "
     "l.det([[1, 2], [3, 4]]))'"},
    {"matplotlib", "python3 /usr/lib/python3/dist-packages/matplotlib",
     "cd $T && MPLCONFIGDIR=$T MPLBACKEND=agg SOURCE_DATE_EPOCH=1 $H python3 -c '"
     "import matplotlib.pyplot as p; p.plot([1, 3, 2]); p.savefig(\"a.png\")' 2> $T/error && "
     "sha256sum a.png"},
    {"mpi4py", "python3 /usr/lib/python3/dist-packages/mpi4py",
     "$H python3 -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(3))'"},
    {"pip_list", "python3 /usr/lib/python3/dist-packages/pip",
     "$H python3 -m pip --disable-pip-version-check list"},
    {"node", "node",
     "$H node -e 'console.log(require(\"crypto\").createHash(\"sha256\").update(\"x\")"
     ".digest(\"hex\")); process.exit(4)'"},
    {"java", "java", "$H java -version"},
    // Tools.
    {"vim", "vim", "echo a > $T/f; $H vim -es -u NONE +'s/a/b/' +'%p' +'q!' $T/f"},
    {"ssh_keygen", "ssh-keygen", "$H ssh-keygen -l -f key"},
    {"git_clone", "git", "$H git clone -q repository $T/clone && git -C $T/clone log --oneline"},
    {"git_status", "git", "$H git -C / status"},
    {"make", "make gcc", "cp -r project $T && $H make -B -C $T/project && $T/project/app"},
    {"lmp_melt", "lmp", "cd $T && $H lmp -log none -screen none -in $DIR/melt && cat out"},
    // Its standard error has process IDs and an order of its own.
    {"chromium", "chromium",
     "HOME=$T $H chromium --headless --no-sandbox --disable-gpu --user-data-dir=$T/d --dump-dom "
     "'data:text/html,<p>hi</p>' 2> $T/error",
     false},
    {"su", "su", "$H su nobody -s /bin/sh -c 'id -un; exit 3' < /dev/null"},
    {"script", "", "$H ./script a 'b c'"},
    {"static", "", "$H ./static"},
    {"of_32_bits", "app32", "$H ./app32 4"},
    // ld.so itself says that it cannot load the audit library: docs/limits.md.
    {"runs_one_of_32_bits", "app32", "$H sh -c './app32 4' 2> $T/error", false},
    {"not_there", "", "$H ./not-there 2> $T/error", false},
    {"a_directory", "", "$H ./project 2> $T/error", false},
    // Shells and what wraps a command.
    {"pipeline", "",
     "$H sh -c 'seq 300 | sort -rn | uniq | tail -n 40 | tac | cut -c1-2 | paste -s -d, | tr , \" "
     "\" "
     "| fold -w 20 | nl | cat -A | rev | od -c | head -n 5 | expand | grep -v x | tee /dev/null | "
     "sed s/0/1/ | awk \"{ print NF }\" | wc'"},
    {"execs", "", "$H sh -c 'i=0; while [ $i -lt 20 ]; do /bin/true; i=$((i+1)); done; exit $i'"},
    {"nice", "", "nice -n 5 $H nice -n 2 nice"},
    {"timeout", "", "$H timeout 20 sh -c 'exit 5'"},
    {"timeout_kills", "", "{ $H timeout -s KILL 0.1 sleep 20; } 2> $T/error; echo $?"},
    {"nohup", "", "$H nohup sh -c 'echo a; exit 5' < /dev/null | cat"},
    {"setsid", "", "$H setsid -w sh -c 'exit 5'"},
    {"stdbuf", "", "$H stdbuf -oL ls -d /etc /usr"},
    {"empty_environment_inside", "", "$H env -i PATH=/usr/bin:/bin sh -c 'env | sort; exit 5'"},
    {"empty_environment", "",
     "env -i PATH=/usr/bin:/bin TMPDIR=$TMPDIR XDG_CACHE_HOME=$XDG_CACHE_HOME $H ls -d /etc"},
    {"little_address_space", "perl", "ulimit -v 200000; $H perl -e 'print 3'"},
    {"more_address_space", "perl", "ulimit -v 500000; $H perl -e 'print 3'"},
    {"much_address_space", "perl", "ulimit -v 2000000; $H perl -e 'print 3'"},
    {"python_in_little_address_space", "python3", "ulimit -v 200000; $H python3 -c 'print(3)'"},
    // Its directories are too much to read: a warning.
    {"python_in_too_little_address_space", "python3",
     "ulimit -v 40000; $H python3 -c 'print(3)' 2> $T/error", true, "it runs unguided"},
    {"few_descriptors", "", "ulimit -n 24; $H sh -c 'ulimit -n; ls -d /etc'"},
    {"hardly_a_descriptor", "", "ulimit -n 5; $H ./static 2> $T/error", false},
    {"no_descriptor", "", "ulimit -n 3; $H ./static 2> $T/error; ls -d $TMPDIR/hd-*", false},
    {"few_processes", "", "ulimit -u 100000; $H sh -c 'ulimit -u; ls -d /etc'"},
    // Debuggers and tracers.
    {"gdb", "gdb",
     "$H gdb -q -batch -nx -ex 'break answer' -ex run -ex 'p 6*7' -ex kill --args ./app "
     "4" WITHOUT_NUMBERS},
    {"strace", "strace", "$H strace -f -qq -o $T/log -e trace=openat sh -c './app 4; exit 3'"},
    {"ltrace", "ltrace", "$H ltrace -o $T/log ./app 4"},
    // Its own status may be 0 or the program's.
    {"perf", "perf", "$H perf stat -x, -o $T/log ./app 4 || [ $? = 8 ]"},
    {"ldd", "ldd", "$H ldd ./app | sed 's/ (0x.*//'", true, "a traced program ends before main"},
    {"ldd_by_hand", "", "LD_TRACE_LOADED_OBJECTS=1 $H ./app 2> $T/error | sed 's/ (0x.*//'", false},
    {"an_argument_that_misses_a_library", "", "$H ls ./misses"},
    // Runtimes that are first in the search.
    {"asan", "asan", "$H ./asan" WITHOUT_NUMBERS},
    {"asan_report", "asan", "$H ./asan 1" WITHOUT_NUMBERS " | grep -E 'ERROR|SUMMARY|in main'"},
    {"asan_static", "asan_static",
     "$H ./asan_static 1" WITHOUT_NUMBERS " | grep -E 'ERROR|SUMMARY|in main'"},
    {"lsan_report", "lsan", "$H ./lsan 2" WITHOUT_NUMBERS " | grep -E 'ERROR|SUMMARY|in main'"},
    {"ubsan_report", "ubsan", "$H ./ubsan 3" WITHOUT_NUMBERS},
    // Beyond 28 bits of randomness it does not start.
    {"tsan", "tsan setarch", "$H setarch -R ./tsan"},
    {"tsan_report", "tsan setarch",
     "$H setarch -R ./tsan 4" WITHOUT_NUMBERS " | grep -oE 'WARNING: ThreadSanitizer: data race'"},
    {"preload", "", "LD_PRELOAD=$PWD/preload.so $H ./app 4; LD_PRELOAD=./preload.so $H ./app 4"},
    {"preload_inside", "", "$H sh -c 'LD_PRELOAD=./preload.so ./app 4'"},
    {"preload_missing", "", "LD_PRELOAD=/not/there.so $H ./app 4"},
    {"jemalloc", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
     "LD_PRELOAD=libjemalloc.so.2 $H perl -e 'print \"x\" x 10, \"\\n\"'"},
    // Odd names and tags.
    {"newline_in_path", "", "$H $'a b\\nc/open' libdeep.so.1"},
    {"auxiliary", "", "$H ./auxiliary"},
    {"auxiliary_that_is_missing", "", "$H ./auxiliary_missing", true,
     "no answer is that there is none"},
    {"filter", "", "$H ./filter"},
    {"tokens", "", "$H ./tokens"},
    {"three_names_of_a_file", "",
     "$H ./open ./names/libone.so ./names/libtwo.so ./names/libthree.so"},
    {"long_soname", "", "$H ./long_soname"},
    {"strange_sonames", "", "$H ./strange_sonames"},
};

/// What the lines use. What this machine's compiler cannot make is not there.
constexpr const char* kWorld = R"sh(set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
# NAME SOURCE FLAG...
lib() { mkdir -p "$(dirname "$1")"; printf %s "$2" | cc -shared -fPIC -x c - -x none -o "$1" "${@:3}"; }
app() { mkdir -p "$(dirname "$1")"; printf %s "$2" | cc -O0 -g -x c - -x none -o "$1" "${@:3}"; }
rpath='-Wl,-rpath,$ORIGIN/none:$ORIGIN'
printf '#!/bin/sh -e\necho "$0" "$@"; ls -d /; exit 6\n' > script; chmod 755 script
app static 'int main(void) { return 5; }' -static
lib l/libtwice.so 'int answer(int x) { return 2 * x; }' -Wl,-soname,libtwice.so
app app 'int answer(int); int main(int c, char** v) { return answer(v[1][0] - 48); }' l/libtwice.so '-Wl,-rpath,$ORIGIN/n:$ORIGIN/l'
lib l/libtwice32.so 'int answer(int x) { return 2 * x; }' -m32 -nostdlib -Wl,-soname,libtwice32.so 2> /dev/null &&
app app32 'int answer(int); int main(int c, char** v) { return answer(v[1][0] - 48); }' -m32 l/libtwice32.so '-Wl,-rpath,$ORIGIN/n:$ORIGIN/l' 2> /dev/null || :
lib l/libgone.so 'int gone(void) { return 0; }'
app misses 'int gone(void); int main(void) { return gone(); }' l/libgone.so && rm l/libgone.so
lib preload.so 'int answer(int x) { return 3 * x; }'
mkdir project
for i in 1 2 3 4 5 6; do echo "int f$i(void) { return $i; }" > project/f$i.c; done
echo 'int f6(void); int main(void) { return f6(); }' > project/main.c
printf 'app: main.o f1.o f2.o f3.o f4.o f5.o f6.o\n\tcc -o $@ $^\n' > project/Makefile
open='#include <dlfcn.h>\n#include <stdio.h>
int main(int c, char** v) { int i, n = 0; for (i = 1; i < c; ++i) { void* h = dlopen(v[i], RTLD_NOW);
if (!h) puts(dlerror()); else n += ((int (*)(void))dlsym(h, "f"))(); } return n; }'
app open "$(printf "$open")"
d=$(printf 'a b\nc')
lib "$d/libdeep.so.1" 'int f(void) { return 5; }'
app "$d/open" "$(printf "$open")" "$rpath"
lib names/libone.so 'static int n; int f(void) { return ++n; }'
ln names/libone.so names/libtwo.so; ln -s libone.so names/libthree.so
lib x/libimpl.so 'int f(void) { return 7; }' -Wl,-soname,libimpl.so
for k in auxiliary:-f,libimpl.so auxiliary_missing:-f,libgone.so filter:-F,libimpl.so; do
  lib x/lib${k%%:*}.so 'int f(void) { return 1; }' -Wl,-soname,lib${k%%:*}.so -Wl,${k#*:} "$rpath"
  app ${k%%:*} 'int f(void); int main(void) { return f(); }' x/lib${k%%:*}.so '-Wl,-rpath,$ORIGIN/none:$ORIGIN/x'
done
app tokens 'int f(void); int main(void) { return f(); }' x/libimpl.so '-Wl,-rpath,${ORIGIN}/$PLATFORM:$ORIGIN/$LIB/no:$ORIGIN/./x/../x'
long=$(printf 'l%.0s' $(seq 252))
lib y/$long 'int f(void) { return 9; }' -Wl,-soname,$long
app long_soname 'int f(void); int main(void) { return f(); }' y/$long '-Wl,-rpath,$ORIGIN/none:$ORIGIN/y'
flags=()
for name in ' a b' $'t\tn\nl' 'q"c;:o' 'p%s\b' 'ü' .hidden; do
  lib "y/$name" "int g${#flags[@]}(void) { return 1; }" -Wl,-soname,"$name"; flags+=("y/$name")
done
app strange_sonames 'int g0(void), g5(void); int main(void) { return g0() + g5(); }' -Wl,--no-as-needed "${flags[@]}" '-Wl,-rpath,$ORIGIN/none:$ORIGIN/y'
bugs='#include <stdlib.h>\n#include <pthread.h>\nint n; int* p; void* w(void* a) { ++n; return a; }
int main(int c, char** v) { int k = c > 1 ? atoi(v[1]) : 0; p = malloc(40);
if (k == 1) { free(p); return *p; } if (k == 2) { p = 0; } if (k == 3) { n = 2147483647; n += c; }
if (k == 4) { pthread_t t; pthread_create(&t, 0, w, 0); ++n; pthread_join(t, 0); } return 0; }'
for k in asan:address lsan:leak ubsan:undefined tsan:thread; do
  app ${k%%:*} "$(printf "$bugs")" -pthread -fsanitize=${k#*:} -Wl,--no-as-needed l/libtwice.so '-Wl,-rpath,$ORIGIN/none:$ORIGIN/l' 2> /dev/null || :
done
app asan_static "$(printf "$bugs")" -pthread -fsanitize=address -static-libasan 2> /dev/null || :
mkdir none t
if command -v python3; then python3 -m venv --without-pip venv; fi
if command -v ssh-keygen; then ssh-keygen -q -t ed25519 -N '' -C heddle -f key; fi
if command -v git; then git init -q repository; echo a > repository/a; git -C repository add a; git -C repository commit -q -m all; fi
cat > melt <<'END'
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
run 20
variable e equal etotal
print "$e" file out
END
)sh";

class RealPrograms : public FsGenFixture, public ::testing::WithParamInterface<Program> {
 protected:
  static void SetUpTestSuite() {
    world_.emplace();
    const auto made = run({"/bin/bash", "-c", kWorld}, {.cwd = world_->path()});
    ASSERT_EQ(made.status, 0) << made.out << made.err;
    grow_old();
  }
  static void TearDownTestSuite() { world_.reset(); }

  RunResult run_line(const std::string& heddle) const {
    RunOptions options = options_;
    options.cwd = world_->path();
    options.env.insert(
        options.env.end(),
        {"H=" + heddle, "T=" + *world_ / "t", "DIR=" + world_->path(), "LC_ALL=C.UTF-8",
         "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GIT_CONFIG_GLOBAL=/dev/null", "MALLOC_PERTURB_",
         "OMPI_MCA_ess_singleton_isolated=1"});
    fs::remove_all(*world_ / "t");
    fs::create_directory(*world_ / "t");
    return run({"/bin/bash", "-c", std::string("set -o pipefail; ") + GetParam().line}, options);
  }

  static inline std::optional<TestDir> world_;
};

TEST_P(RealPrograms, is_the_same_in_each_run) {
  const auto& program = GetParam();
  for (std::istringstream needs(program.needs); needs;) {
    std::string need;
    if (needs >> need && !find_program(need) && !fs::exists(fs::path(world_->path()) / need))
      HEDDLE_SKIP(need + " is not installed, or this compiler cannot make it");
  }
  const auto stock = run_line("");
  if (program.needs == "app32"sv && stock.err.find("Exec format error") != std::string::npos)
    HEDDLE_SKIP("this kernel executes no programs of 32 bits");
  for (const char* mounts : {"", "/"}) {
    options_.env.push_back(std::string("HEDDLE_SLOW=") + mounts);
    options_.env.push_back(std::string("HEDDLE_FAST=") + (*mounts ? "" : "/"));
    for (const char* which : {"first", "learned", "cached", "reported"}) {
      const bool reports = which == "reported"sv;
      const auto ours =
          run_line(fs_gen_ + " -q" + (reports ? " --json " + dir_ / "report.json" : ""));
      SCOPED_TRACE(std::string(which) + (*mounts ? ", mounted" : ", direct"));
      EXPECT_EQ(ours.out, stock.out);
      EXPECT_EQ(ours.err, stock.err);
      EXPECT_EQ(ours.status, stock.status);
    }
    if (!program.reports || *program.unknown) continue;
    EXPECT_EQ(report().value("failed_probes", -1), 0) << report().dump(1);
  }
}

INSTANTIATE_TEST_SUITE_P(Installed, RealPrograms, ::testing::ValuesIn(kPrograms),
                         [](const auto& each) { return std::string(each.param.name); });

class ManyPrograms : public FsGenFixture {};

TEST_F(ManyPrograms, sixty_four_programs_run_at_once) {
  options_.env.emplace_back("OMPI_MCA_ess_singleton_isolated=1");
  options_.deadline = std::chrono::minutes(4);
  const auto fixed =
      build_program({.output = dir_ / "static",
                     .source = "#include <stdio.h>\nint main(){puts(\"hi\");return 5;}",
                     .flags = {"-static", "-no-pie"}});
  const auto script = write_text_file(dir_ / "script", "#!/bin/sh -e\necho \"$0\"; exit 6\n", 0755);
  std::vector<Words> programs = {{fixed}, {script}};
  for (const Words& words : std::vector<Words>{
           {"/usr/bin/git", "-C", "/", "status"},
           {"/usr/bin/su", "--version"},
           {"/bin/ls", "/"},
           {"/usr/bin/lmp", "-h"},
           {"/usr/bin/gdb", "--version"},
           {"/usr/bin/python3", "-c", "import numpy; print(numpy.arange(10).sum())"}})
    if (fs::exists(words[0])) programs.push_back(words);
  std::vector<RunResult> bare;
  for (const auto& words : programs) bare.push_back(run(words, options_));
  std::vector<RunResult> ours(64);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ours.size(); ++i)
    threads.emplace_back([&, i] {
      Words words{fs_gen_, "-q", "--"};
      const auto& program = programs[i % programs.size()];
      words.insert(words.end(), program.begin(), program.end());
      // Open MPI singletons that start at once conflict in one session directory.
      auto own = options_;
      const auto session = dir_ / ("session" + std::to_string(i));
      fs::create_directory(session);
      own.env.push_back("OMPI_MCA_orte_tmpdir_base=" + session);
      ours[i] = run(words, own);
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto& expected = bare[i % programs.size()];
    EXPECT_EQ(ours[i].out, expected.out) << programs[i % programs.size()][0];
    EXPECT_EQ(ours[i].err, expected.err);
    EXPECT_EQ(ours[i].status, expected.status);
  }
}

constexpr const char* kRing = R"(
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int rank, size, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, sum %d\n", size, sum);
  MPI_Finalize();
  return argc > 1 ? 3 : 0;
}
)";

class MpiFamily : public FsGenFixture, public ::testing::WithParamInterface<const char*> {};

TEST_P(MpiFamily, four_ranks_compute_the_right_sum) {
  const std::string family = GetParam();
  const std::string compiler = "/usr/bin/mpicc." + family;
  if (!fs::exists(compiler)) HEDDLE_SKIP(compiler + " is not installed");
  const auto program = dir_ / "ring";
  run_checked({compiler, write_text_file(dir_ / "ring.c", kRing), "-o", program});
  options_.env.insert(options_.env.end(),
                      {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                       "OMPI_MCA_rmaps_base_oversubscribe=1"});
  grow_old();
  for (const bool fails : {false, true}) {
    Words words{"/usr/bin/mpirun." + family, "-n", "4", program};
    if (fails) words.emplace_back("fail");
    const auto bare = run(words, options_);
    RunResult ours;
    for (int i = 0; i < 3; ++i) {
      ours = run_guided(words);
      EXPECT_EQ(ours.out, bare.out) << ours.err;
    }
    EXPECT_EQ(report().value("failed_probes", -1), 0) << "it has learned all: " << report().dump(1);
    EXPECT_EQ(report().value("left_processes", -1), 0);
    EXPECT_EQ(ours.status, bare.status) << fails;
    EXPECT_TRUE(ours.out.starts_with("4 ranks, sum 6\n")) << ours.out << ours.err;
    EXPECT_GE(report().value("guided_processes", 0U), 5U);  // mpirun and the ranks
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MpiFamily, ::testing::Values("openmpi", "mpich"),
                         kParameterName);

}  // namespace
}  // namespace heddle::test
