// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <random>
#include <string>

namespace heddle::test {

/// Damaged copies of a file, the same for one seed: truncated, or with a few bytes overwritten,
/// mostly near the start or the end.
class Corpus {
 public:
  explicit Corpus(std::string whole, unsigned seed = 1) : whole_(std::move(whole)), random_(seed) {}

  std::string next() {
    if (random_() % 6 == 0) return whole_.substr(0, random_() % whole_.size());
    std::string bad = whole_;
    for (auto blows = 1 + random_() % 4; blows > 0; --blows) {
      static constexpr unsigned char kNasty[] = {0, 1, 0x7F, 0x80, 0xFE, 0xFF};
      const auto value = random_() % 2 ? random_() : kNasty[random_() % sizeof kNasty];
      bad[place()] = static_cast<char>(value);
    }
    return bad;
  }

 private:
  std::size_t place() {
    switch (random_() % 4) {
      case 0:
        return random_() % whole_.size();
      case 1:  // the last page: an ELF file's dynamic section, a map's trailer
        return whole_.size() - 1 - random_() % std::min<std::size_t>(whole_.size(), 4096);
      case 2:
        return random_() % std::min<std::size_t>(whole_.size(), 64);
      default:
        return random_() % std::min<std::size_t>(whole_.size(), 2048);
    }
  }

  std::string whole_;
  std::mt19937 random_;
};

}  // namespace heddle::test
