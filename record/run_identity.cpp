// SPDX-License-Identifier: MIT
#include "record/run_identity.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace heddle {

std::optional<int> rank_from_environment() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "FLUX_TASK_RANK"}) {
    const char* text = std::getenv(name);
    if (!text) continue;
    int rank = 0;
    const char* end = text + std::strlen(text);
    const auto got = std::from_chars(text, end, rank);
    if (got.ec == std::errc() && got.ptr == end && rank >= 0) return rank;
  }
  return std::nullopt;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

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
