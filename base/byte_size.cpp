// SPDX-License-Identifier: MIT
#include "base/byte_size.hpp"

#include <charconv>
#include <system_error>

namespace heddle {

std::optional<std::uint64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.begin(), text.end(), number, std::chars_format::fixed);
  if (error != std::errc() || number < 0) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(text.end() - end));
  double factor = 1;
  if (!unit.empty()) {
    const auto power = std::string_view("bkmgt").find(static_cast<char>(unit[0] | 0x20));
    if (power == std::string_view::npos) return std::nullopt;
    for (std::size_t i = 0; i < power; ++i) factor *= 1024;
    unit.remove_prefix(1);
    if (power > 0 && unit != "" && unit != "B" && unit != "iB") return std::nullopt;
    if (power == 0 && !unit.empty()) return std::nullopt;
  }
  if (number * factor > 1e18) return std::nullopt;
  return static_cast<std::uint64_t>(number * factor);
}

}  // namespace heddle
