// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heddle::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
