// SPDX-License-Identifier: MIT
// Resolves its arguments and prints what it took: for tests that watch its system calls, and for
// measuring the search without the facts.
#include <chrono>
#include <cstdio>

#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/plain_facts.hpp"

int main(int argc, char** argv) {
  heddle::test::PlainFacts source;
  heddle::OsWorld world(source);
  for (int i = 1; i < argc; ++i) {
    const auto facts = world.facts(argv[i]);
    if (!facts) return 3;
    const auto begin = std::chrono::steady_clock::now();
    const auto loader = heddle::read_loader_profile(
        world, facts->elf.interp.value_or("/lib64/ld-linux-x86-64.so.2"));
    if (!loader) return 3;
    const auto middle = std::chrono::steady_clock::now();
    const auto closure = heddle::resolve(world, *loader, argv[i], {});
    const auto end = std::chrono::steady_clock::now();
    if (!closure) return 3;
    const auto ms = [](auto duration) {
      return std::chrono::duration<double, std::milli>(duration).count();
    };
    std::printf(
        "%s: %zu objects, %zu missing, probes failed %llu, profile %.2f ms, resolve %.2f ms\n",
        argv[i], closure->objects.size(), closure->missing.size(),
        static_cast<unsigned long long>(closure->probes.failed()), ms(middle - begin),
        ms(end - middle));
  }
}
