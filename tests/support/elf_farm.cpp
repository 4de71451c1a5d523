// SPDX-License-Identifier: MIT
//
// A library costs one `as` of a few lines of data and two `ld` (2.4 ms each), no compiler. The code
// is one C file compiled once; a library is that object and its table of dependencies, exported
// under a name given by --defsym. The first ld makes a stand-in without dependencies for other
// libraries to link against, so that all build in parallel.
#include "tests/support/elf_farm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/result.hpp"
#include "base/temp_dir.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {
namespace {

constexpr const char* kLibrarySource = R"(
typedef unsigned long long number;
#define HIDDEN __attribute__((visibility("hidden")))
extern HIDDEN const number farm_number, farm_need_count;
extern HIDDEN number (*const farm_needs[])(void);
number farm_value(void) {  // its default visibility applies to the aliases of --defsym too
  static int called;
  if (called) return 0;
  called = 1;
  number sum = farm_number;
  for (number i = 0; i < farm_need_count; ++i) sum += farm_needs[i]();
  return sum;
}
)";

constexpr const char* kProgramSource = R"(
#include <dlfcn.h>
#include <stdio.h>
typedef unsigned long long number;
extern const number farm_need_count, farm_dlopen_count;
extern number (*const farm_needs[])(void);
extern const char farm_dlopen_names[];
int main(void) {
  number sum = 0;
  for (number i = 0; i < farm_need_count; ++i) sum += farm_needs[i]();
  const char* name = farm_dlopen_names;
  for (number i = 0; i < farm_dlopen_count; ++i) {
    const char* symbol = name + __builtin_strlen(name) + 1;
    void* library = dlopen(name, RTLD_LAZY);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    number (*value)(void) = (number (*)(void))dlsym(library, symbol);
    if (!value) return fprintf(stderr, "%s\n", dlerror()), 1;
    sum += value();
    name = symbol + __builtin_strlen(symbol) + 1;
  }
  printf("farm checksum %llu\n", sum);
  return 0;
}
)";

/// Calls work(i) for every i below `count` on two threads; rethrows an exception.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  std::vector<std::thread> threads;
  for (int job = 0; job < 2; ++job)
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < count; i = next++) try {
          work(i);
        } catch (...) {
          const std::lock_guard lock(failure_mutex);
          failure = std::current_exception();
          next = count;
        }
    });
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

std::string assembler_string(const std::string& text) {
  std::string out;
  for (const unsigned char c : text) out += fmt::format("\\{:03o}", c);
  return "\"" + out + "\"";
}

/// The libraries that each library needs; the last element is those that the program needs.
std::vector<std::vector<std::size_t>> farm_edges(const FarmOptions& options) {
  const std::size_t n = options.libraries;
  std::vector<std::vector<std::size_t>> edges(n + 1);
  auto& program = edges[n];
  switch (options.shape) {
    case FarmShape::star:
      for (std::size_t i = 0; i < n; ++i) program.push_back(i);
      break;
    case FarmShape::chain:
      if (n > 0) program.push_back(0);
      for (std::size_t i = 0; i + 1 < n; ++i) edges[i].push_back(i + 1);
      break;
    case FarmShape::tree:
      for (std::size_t i = 0; i < n; ++i) edges[i < 2 ? n : (i - 2) / 2].push_back(i);
      break;
    case FarmShape::modules: {
      std::mt19937_64 random(1);
      const std::size_t utilities = n / 3;
      for (std::size_t i = utilities; i < n; ++i) {
        program.push_back(i);
        std::set<std::size_t> needs;
        if (utilities > 0) needs.insert(i % utilities);  // so that none is left out
        while (needs.size() < std::min<std::size_t>(10, utilities))
          needs.insert(random() % utilities);
        edges[i].assign(needs.begin(), needs.end());
      }
      break;
    }
    case FarmShape::random: {
      std::mt19937_64 random(1);
      // Every library has a parent before it: all are reached, without loops.
      for (std::size_t i = 0; i < n; ++i) edges[i < 8 ? n : random() % i].push_back(i);
      for (std::size_t i = 0; i + 1 < n; ++i)
        for (std::size_t extra = random() % 4; extra > 0; --extra)
          edges[i].push_back(i + 1 + random() % (n - i - 1));
      for (auto& needs : edges) {
        std::shuffle(needs.begin(), needs.end(), random);
        std::vector<std::size_t> once;
        for (const std::size_t need : needs)
          if (std::find(once.begin(), once.end(), need) == once.end()) once.push_back(need);
        needs = std::move(once);
      }
      break;
    }
  }
  return edges;
}

/// One farm under construction.
class Builder {
 public:
  Builder(std::string directory, const FarmOptions& options)
      : directory_(std::move(directory)),
        options_(options),
        work_(value_or_throw(TempDir::create(".farm", directory_))),
        edges_(farm_edges(options)) {}

  ElfFarm build() {
    name_everything();
    run_checked({"cc", "-O1", "-fPIC", "-c", "-x", "c", "-", "-o", work("lib.o")},
                {.env = {}, .cwd = {}, .input = kLibrarySource});
    const std::size_t n = options_.libraries;
    write_text_file(work("exports"), "{ local: farm_value; };\n");
    in_parallel(n, [&](std::size_t i) {
      assemble(numbered(i, ".o"), table(edges_[i], options_.first_number + i) + filling());
      const bool absolute = options_.tag == FarmTag::absolute;
      link_library(i, work(farm_.sonames[i]), absolute ? farm_.libraries[i] : farm_.sonames[i], {});
    });
    in_parallel(n, [&](std::size_t i) {
      link_library(i, farm_.libraries[i], farm_.sonames[i], edges_[i]);
    });
    build_main();
    return std::move(farm_);
  }

 private:
  std::string work(const std::string& name) const { return work_.path() + "/" + name; }
  std::string numbered(std::size_t i, const char* end) const {
    return work(std::to_string(i) + end);
  }
  static std::string function_name(std::size_t library) { return fmt::format("farm_{}", library); }

  void name_everything() {
    static constexpr const char* kOdd[] = {" a b", "\ttab", "\nline", "größe", "'quote\"", "%s"};
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < options_.libraries; ++i) {
      auto name = fmt::format("{:04}", i + 1);
      if (options_.odd_names) name += kOdd[i % std::size(kOdd)];
      const auto directory = directory_ + "/lib/" + name;
      std::filesystem::create_directories(directory);
      farm_.directories.push_back(directory);
      farm_.sonames.push_back(fmt::format("libfarm{:04}.so.1", i + 1));
      farm_.libraries.push_back(directory + "/" + farm_.sonames.back());
      sum += options_.first_number + i;
    }
    farm_.library_path = fmt::format("{}", fmt::join(farm_.directories, ":"));
    farm_.program = directory_ + "/app";
    farm_.output = fmt::format("farm checksum {}\n", sum);
  }

  void assemble(const std::string& output, const std::string& text) const {
    run_checked({"as", "-o", output, "-"}, {.env = {}, .cwd = {}, .input = text});
  }

  /// The data of one library. .8byte holds a pointer on every 64-bit machine.
  std::string table(const std::vector<std::size_t>& needs, std::uint64_t number) const {
    std::string pointers;
    for (const std::size_t need : needs)
      pointers += fmt::format(" .8byte {}\n", function_name(need));
    return fmt::format(
        " .section .data.rel.ro,\"aw\",%progbits\n .balign 8\n .globl farm_number, "
        "farm_need_count, farm_needs\nfarm_number:\n .8byte {}\nfarm_need_count:\n .8byte {}\n"
        "farm_needs:\n{} .8byte 0\n .section .note.GNU-stack,\"\",%progbits\n",
        number, needs.size(), pointers);
  }

  /// What makes a library larger, and is never used.
  std::string filling() const {
    std::string out;
    if (options_.text > 0) out += fmt::format(" .text\n .skip {}, 0x90\n", options_.text);
    if (options_.relocations > 0)
      out += fmt::format(
          " .section .data.rel.ro,\"aw\",%progbits\n .rept {}\n .8byte farm_number\n .endr\n",
          options_.relocations);
    if (options_.thread_local_bytes > 0)
      out += fmt::format(" .section .tdata,\"awT\",%progbits\n .skip {}\n",
                         options_.thread_local_bytes);
    return out;
  }

  void add_needs(std::vector<std::string>& argv, const std::vector<std::size_t>& needs,
                 const std::string& before) const {
    for (const std::size_t need : needs) argv.push_back(work(farm_.sonames[need]));
    if (options_.tag == FarmTag::none || options_.tag == FarmTag::absolute) return;
    argv.push_back(before +
                   (options_.tag == FarmTag::rpath ? "--disable-new-dtags" : "--enable-new-dtags"));
    for (const auto& directory : farm_.directories)
      before.empty() ? argv.insert(argv.end(), {"-rpath", directory})
                     : argv.insert(argv.end(), {"-Xlinker", "-rpath", "-Xlinker", directory});
  }

  void link_library(std::size_t i, const std::string& output, const std::string& soname,
                    const std::vector<std::size_t>& needs) const {
    std::vector<std::string> argv = {"ld", "-shared", "-z", "relro", "--hash-style=gnu"};
    argv.insert(argv.end(), {"-o", output, "-soname", soname, "--version-script", work("exports"),
                             work("lib.o"), numbered(i, ".o"),
                             "--defsym=" + function_name(i) + "=farm_value", "--no-as-needed"});
    // Libraries inherit the program's RPATH, but not its RUNPATH.
    if (!needs.empty() && options_.tag != FarmTag::rpath)
      add_needs(argv, needs, "");
    else
      for (const std::size_t need : needs) argv.push_back(work(farm_.sonames[need]));
    run_checked(argv);
  }

  void build_main() {
    const auto& roots = edges_.back();
    const bool by_dlopen = options_.dlopen_roots;
    std::string names;
    for (const std::size_t root : roots)
      names += fmt::format(" .asciz {}\n .asciz \"{}\"\n", assembler_string(farm_.sonames[root]),
                           function_name(root));
    const auto data = table(by_dlopen ? std::vector<std::size_t>{} : roots, 0) +
                      fmt::format(
                          " .data\n .balign 8\n .globl farm_dlopen_count, farm_dlopen_names\n"
                          "farm_dlopen_count:\n .8byte {}\nfarm_dlopen_names:\n{} .byte 0\n",
                          by_dlopen ? roots.size() : 0, names);
    assemble(work("main.o"), data);
    std::vector<std::string> flags = {work("main.o"), "-Wl,--no-as-needed",
                                      "-Wl,--allow-shlib-undefined"};
    add_needs(flags, by_dlopen ? std::vector<std::size_t>{} : roots, "-Wl,");
    build_program({.output = farm_.program, .source = kProgramSource, .flags = flags});
  }

  std::string directory_;
  const FarmOptions& options_;
  TempDir work_;
  std::vector<std::vector<std::size_t>> edges_;
  ElfFarm farm_;
};

}  // namespace

ElfFarm ElfFarm::build(const std::string& directory, const FarmOptions& options) {
  std::filesystem::create_directories(directory);
  return Builder(std::filesystem::absolute(directory).string(), options).build();
}

}  // namespace heddle::test
