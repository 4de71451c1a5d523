// SPDX-License-Identifier: MIT
// Compares the closure and the probes of every dynamic ELF file below the given directories with
// the real ld.so's, as ldd gets them: LD_TRACE_LOADED_OBJECTS=1, libraries through ld.so. Exit
// status 0: no difference. --every=N takes each Nth file.
#include <elf.h>
#include <fcntl.h>
#include <fts.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "base/fd.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/oracle.hpp"

namespace {

bool starts_as_elf(const char* path) {
  char magic[4] = {};
  const heddle::Fd fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return fd && ::read(fd.get(), magic, 4) == 4 && std::memcmp(magic, "\177ELF", 4) == 0;
}

std::vector<std::string> elf_files(std::vector<std::string> roots) {
  std::vector<char*> arguments;
  for (auto& root : roots) arguments.push_back(root.data());
  arguments.push_back(nullptr);
  std::vector<std::string> files;
  std::set<heddle::FileId> seen;
  FTS* tree = ::fts_open(arguments.data(), FTS_PHYSICAL | FTS_NOCHDIR, nullptr);
  while (FTSENT* entry = ::fts_read(tree))
    if (entry->fts_info == FTS_F && starts_as_elf(entry->fts_path) &&
        seen.insert(heddle::file_id(*entry->fts_statp)).second)
      files.emplace_back(entry->fts_path);
  ::fts_close(tree);
  std::sort(files.begin(), files.end());
  return files;
}

/// The loader of a library without PT_INTERP, by its machine.
std::string usual_loader(const heddle::ElfFacts& elf) {
  if (elf.machine == EM_386) return "/lib/ld-linux.so.2";
  if (elf.machine == EM_AARCH64) return "/lib/ld-linux-aarch64.so.1";
  return elf.elf_class == ELFCLASS32 ? "/libx32/ld-linux-x32.so.2" : "/lib64/ld-linux-x86-64.so.2";
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> roots(argv + 1, argv + argc);
  std::size_t step = 1;
  std::string library_path;
  while (!roots.empty() && roots[0].starts_with("--")) {
    if (roots[0].starts_with("--every=")) step = std::strtoul(roots[0].c_str() + 8, nullptr, 10);
    if (roots[0].starts_with("--library-path=")) library_path = roots[0].substr(15);
    roots.erase(roots.begin());
  }
  if (roots.empty()) roots = {"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"};
  const auto files = elf_files(roots);
  heddle::FactsOptions facts_options;
  facts_options.pool.worker_path = HEDDLE_ELF_WORKER;
  facts_options.cache = heddle::CacheUse::none;
  heddle::CachedFacts pool(facts_options);
  heddle::OsWorld world(pool);
  world.prefetch(files);
  std::map<std::string, heddle::Result<heddle::LoaderProfile>> loaders;
  std::map<std::string, std::size_t> excluded;
  heddle::test::RunOptions debug;
  debug.env = {"LD_DEBUG=libs"};
  if (!library_path.empty()) debug.env.push_back("LD_LIBRARY_PATH=" + library_path);
  std::size_t probes = 0;
  std::size_t compared = 0;
  std::size_t different = 0;
  std::chrono::nanoseconds ours_took{};
  for (std::size_t i = 0; i < files.size(); i += std::max<std::size_t>(step, 1)) {
    const auto& file = files[i];
    const auto facts = world.facts(file);
    if (!facts) {
      ++excluded["not readable as ELF"];
      continue;
    }
    const auto& elf = facts->elf;
    if (!elf.dynamic) {
      ++excluded["not dynamic"];
      continue;
    }
    const auto interpreter = elf.interp.value_or(usual_loader(elf));
    auto loader = loaders.find(interpreter);
    if (loader == loaders.end()) {
      loader = loaders.emplace(interpreter, heddle::read_loader_profile(world, interpreter)).first;
      // x32 where the kernel is built without it: execve fails, and a shell would take its place.
      if (heddle::test::run({interpreter, "--list", interpreter}).status != 0)
        loader->second = heddle::fail(interpreter, "cannot be executed here");
    }
    if (!loader->second || elf.machine != loader->second->machine ||
        elf.elf_class != loader->second->elf_class) {
      ++excluded["another machine or loader"];
      continue;
    }
    const auto before = std::chrono::steady_clock::now();
    heddle::SearchOptions options;
    options.explain = true;
    options.ld_library_path = library_path;
    const auto ours = heddle::resolve(world, *loader->second, file, options);
    ours_took += std::chrono::steady_clock::now() - before;
    // libc.so.6 and libcap.so.2 name an interpreter but are mostly not executable. A set-ID program
    // does not trace itself: it refuses, or since glibc 2.39 runs. Given to ld.so it does.
    struct stat status {};
    const bool runs = elf.interp.has_value() && ::access(file.c_str(), X_OK) == 0 &&
                      ::stat(file.c_str(), &status) == 0 &&
                      (status.st_mode & (S_ISUID | S_ISGID)) == 0;
    const auto theirs = heddle::test::ask_ld_so(file, runs, interpreter, debug);
    if (theirs.status != 0) {
      // Of a refusal only its existence is compared.
      if (theirs.err.find("error while loading shared libraries") != std::string::npos)
        ++excluded[ours && ours->missing.empty() ? "ld.so refused it"
                                                 : "ld.so refused it, so do we"];
      else
        ++excluded["ld.so crashed or cannot start it"];
      std::printf("excluded %s: status %d: %.200s\n", file.c_str(), theirs.status,
                  theirs.err.c_str());
      continue;
    }
    if (!ours) {
      ++different;
      std::printf("DIFFERENT %s: we fail: %s\n", file.c_str(), ours.error().message().c_str());
      continue;
    }
    if (theirs.is_static) {
      // Without DT_NEEDED ld.so prints "statically linked" instead of a list.
      if (!elf.dependencies.empty() || !ours->missing.empty()) {
        ++different;
        std::printf("DIFFERENT %s: ld.so says statically linked\n", file.c_str());
        continue;
      }
      ++compared;
      continue;
    }
    auto what = heddle::test::difference(*ours, theirs);
    const auto tried = heddle::test::tried_files(*ours);
    probes += tried.size();
    if (what.empty())
      what = heddle::test::first_difference(tried, heddle::test::tried_files(theirs.err));
    ++compared;
    if (!ours->missing.empty()) ++excluded["(compared all the same) has missing libraries"];
    if (what.empty()) continue;
    ++different;
    std::printf("DIFFERENT %s: %s\n", file.c_str(), what.c_str());
  }
  // .ci/test_summary.py shows the lines "summary: " of passed tests.
  std::printf("summary: files %zu, compared %zu with %zu probes, different %zu, our time %.3f s\n",
              files.size(), compared, probes, different,
              std::chrono::duration<double>(ours_took).count());
  for (const auto& [reason, count] : excluded)
    std::printf("summary:   %zu %s%s\n", count,
                reason[0] == '(' ? "" : "excluded: ", reason.c_str());
  return different == 0 && compared > 0 ? 0 : 1;
}
