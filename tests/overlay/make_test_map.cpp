// SPDX-License-Identifier: MIT
// make_test_map OUT DIRECTORY...: a map with a view for each directory, for experiments with
// fs-mount.

#include <cstdio>
#include <filesystem>

#include "tests/overlay/overlay_support.hpp"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  heddle::test::MapMaker maker;
  for (int i = 2; i < argc; ++i)
    maker.add_directory(std::filesystem::path(argv[i]).filename().string(), argv[i]);
  try {
    maker.write(argv[1]);
  } catch (const heddle::Error& error) {
    std::fprintf(stderr, "make_test_map: %s\n", error.what());
    return 3;
  }
  return 0;
}
