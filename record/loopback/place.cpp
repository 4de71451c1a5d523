// SPDX-License-Identifier: MIT
#include "record/loopback/place.hpp"

#include <linux/limits.h>

namespace heddle::loopback {

Place::Place(std::string path) : rest_(std::move(path)) {
  constexpr std::size_t kLongest = PATH_MAX - 1;
  while (rest_.size() > kLongest) {
    const auto cut = rest_.rfind('/', kLongest);
    if (cut == std::string::npos || cut == 0) return;
    const std::string piece = rest_.substr(0, cut);
    Fd next(::openat(dir(), piece.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!next) return;  // the call that uses us then says ENAMETOOLONG
    front_ = std::move(next);
    rest_.erase(0, cut + 1);
  }
}

}  // namespace heddle::loopback
