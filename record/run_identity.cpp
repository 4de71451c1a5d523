// SPDX-License-Identifier: MIT
#include "record/run_identity.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/rank.hpp"

namespace heddle {

std::string new_run_id() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits)))
    bits =
        static_cast<std::uint64_t>(::time(nullptr)) << 20U ^ static_cast<std::uint64_t>(::getpid());
  return fmt::format("{:016x}", bits);
}

std::string trace_file_name(bool json) {
  const auto rank = rank_from_environment();
  return fmt::format("{}{}.{}.{}", host_name(), rank ? fmt::format(".{}", *rank) : "", ::getpid(),
                     json ? "jsonl" : "txt");
}

}  // namespace heddle
