// SPDX-License-Identifier: MIT
#include "tests/fuzz/mutate.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace heddle::fuzz {
namespace {

class Mutator {
 public:
  Mutator(std::string bytes, const std::vector<std::string>& others, std::mt19937_64& random)
      : bytes_(std::move(bytes)), others_(others), random_(random) {}

  void step() {
    switch (below(7)) {
      case 0:
        if (!bytes_.empty()) bytes_[place()] ^= static_cast<char>(1U << below(8));
        break;
      case 1:
        if (!bytes_.empty()) bytes_[place()] = static_cast<char>(below(256));
        break;
      case 2:
        put_number();
        break;
      case 3:
        bytes_.erase(below(bytes_.size() + 1), below(64));
        break;
      case 4: {
        const std::size_t from = below(bytes_.size() + 1);
        bytes_.insert(below(bytes_.size() + 1), bytes_.substr(from, below(64)));
        break;
      }
      case 5: {
        const std::string& other = others_[below(others_.size())];
        const std::string piece = other.substr(below(other.size() + 1), below(256));
        const std::size_t at = below(bytes_.size() + 1);
        bytes_.replace(at, below(2) ? piece.size() : 0, piece);
        break;
      }
      default:
        if (below(8) == 0) bytes_.resize(below(bytes_.size() + 1));
        break;
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  std::size_t place() { return below(bytes_.size()); }

  void put_number() {
    static constexpr std::uint64_t kOdd[] = {
        0,         1,          0x7f,       0x80,       0xff,           0x7fff,
        0xffff,    0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff,     UINT64_C(1) << 62,
        INT64_MAX, UINT64_MAX, bytes_max,  4096,       UINT64_MAX - 7, UINT64_C(1) << 32};
    std::uint64_t value = kOdd[below(std::size(kOdd))];
    if (value == bytes_max) value = bytes_.size() + below(3) - 1;
    const std::size_t width = std::size_t{1} << below(4);
    if (bytes_.size() < width) return;
    std::memcpy(bytes_.data() + below(bytes_.size() - width + 1), &value, width);
  }
  static constexpr std::uint64_t bytes_max = 0x5EED;  ///< stands for the input's own length

  std::string bytes_;
  const std::vector<std::string>& others_;
  std::mt19937_64& random_;
};

}  // namespace

std::string mutated(std::string bytes, const std::vector<std::string>& others,
                    std::mt19937_64& random) {
  Mutator mutator(std::move(bytes), others, random);
  for (std::size_t steps = 1 + random() % 6; steps > 0; --steps) mutator.step();
  return mutator.take();
}

}  // namespace heddle::fuzz
