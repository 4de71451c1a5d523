// SPDX-License-Identifier: MIT
#include "launch/launch_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/rank_mark.hpp"

namespace heddle::launch {
namespace {

bool is_plain(unsigned char c) {
  return std::isalnum(c) != 0 ||
         std::string_view("/._-+=@").find(static_cast<char>(c)) != std::string_view::npos;
}

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text)
    is_plain(static_cast<unsigned char>(c))
        ? out += c
        : out += fmt::format("%{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    const auto digits = text.substr(i + 1, 2);
    const auto got = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || got.ptr != digits.data() + 2) return std::nullopt;
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

/// Calls `each(name, value)`, for one field or each element of a list.
template <class Settings, class Each>
void for_each_field(Settings& s, const Each& each) {
  each("map", s.map);
  each("stage", s.stage);
  each("via", s.via);
  each("python", s.python);
  each("slow", s.slow);
  each("fast", s.fast);
  each("tree", s.trees);
  each("profile", s.profile);
  each("image", s.image);
  each("backend", s.backend);
  each("source", s.source);
  each("hooks", s.hooks);
  each("mpi", s.mpi);
  each("hold", s.hold);
  each("hold-exit", s.hold_exit);
  each("hold-directory", s.hold_directory);
  each("reports", s.reports);
  each("job", s.job);
  each("job-start", s.job_start);
  each("job-to", s.job_to);
  each("step-check", s.step_check);
  each("prolog", s.prolog);
  each("ship", s.ship);
  each("bundle", s.bundle);
  each("quiet", s.quiet);
  each("signals", s.signals);
}

}  // namespace

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return is_plain(c); });
}

namespace {

std::string own_mark() {
  return fmt::format("{:016x}", rank_mark([](const char* name) { return std::getenv(name); }));
}

}  // namespace

std::string with_own_mark(const std::string& value) {
  const auto at = value.find(kSeparator);
  if (at == value.npos || value.size() < at + 1 + kMarkDigits) return value;
  return std::string(value).replace(at + 1, kMarkDigits, own_mark());
}

std::string encode(const std::string& agent, const LaunchSettings& settings) {
  auto out = agent + kSeparator + own_mark();
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{}{}={}", kSeparator, name, percent_encoded(value));
  };
  for_each_field(settings, [&](const char* name, const auto& field) {
    if constexpr (requires { field.begin()->size(); })
      for (const auto& value : field) add(name, value);
    else
      add(name, field);
  });
  return out;
}

std::optional<LaunchSettings> decode(std::string_view value) {
  LaunchSettings out;
  int number = 0;
  for (std::size_t at = 0; at <= value.size(); ++number) {
    const auto end = std::min(value.find(kSeparator, at), value.size());
    const auto word = value.substr(at, end - at);
    at = end + 1;
    if (number < 2) continue;  // AGENT and MARK
    const auto equals = word.find('=');
    const auto text = percent_decoded(word.substr(std::min(equals, word.size() - 1) + 1));
    bool known = false;
    if (equals == word.npos || !text) return std::nullopt;
    for_each_field(out, [&](std::string_view name, auto& field) {
      if (name != word.substr(0, equals)) return;
      known = true;
      if constexpr (requires { field.begin()->size(); })
        field.push_back(*text);
      else
        field = *text;
    });
    if (!known) return std::nullopt;
  }
  return number < 2 ? std::nullopt : std::optional(std::move(out));
}

}  // namespace heddle::launch
