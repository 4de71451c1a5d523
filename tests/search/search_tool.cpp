// SPDX-License-Identifier: MIT
// Resolves its argument; a test traces its system calls.
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/plain_facts.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  heddle::test::PlainFacts source;
  heddle::OsWorld world(source);
  const auto loader = heddle::read_loader_profile(world, heddle::kNativeLoader);
  const auto closure = heddle::resolve(world, heddle::value_or_throw(loader), argv[1], {});
  return closure && closure->missing.empty() ? 0 : 3;
}
