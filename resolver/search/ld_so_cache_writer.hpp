// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "resolver/search/ld_so_cache.hpp"

namespace heddle {

struct CacheLine {
  std::string name;
  std::string path;
};

/// The bytes of an ld.so.cache (format 1.1, which every glibc since 2.2 reads) that leads each name
/// of `first` to its path and every other name where `old` leads it: its lines under those names
/// are left out, all others kept, for other ABIs and CPUs too.
std::string write_ld_so_cache(const LdSoCache& old, const std::vector<CacheLine>& first,
                              const LoaderProfile& loader);

}  // namespace heddle
