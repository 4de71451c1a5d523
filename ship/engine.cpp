// SPDX-License-Identifier: MIT
#include "ship/engine.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "base/find_program.hpp"
#include "base/try.hpp"

namespace heddle::ship {

Words split_words(const std::string& text) { return CLI::detail::split_up(text); }

Words fill_in(Words words, const std::vector<std::pair<std::string, std::string>>& values) {
  for (auto& word : words)
    for (std::size_t at = 0; (at = word.find('{', at)) != word.npos;) {
      const auto end = word.find('}', at);
      const auto name = end == word.npos ? "" : word.substr(at + 1, end - at - 1);
      const auto value =
          std::ranges::find(values, name, &std::pair<std::string, std::string>::first);
      if (value == values.end()) {
        ++at;
        continue;
      }
      word.replace(at, end - at + 1, value->second);
      at += value->second.size();  // braces of a path are no placeholders
    }
  return words;
}

Result<Words> words_printed_by(const Words& command, std::chrono::milliseconds limit) {
  const auto program = TRY(find_program(command[0]));
  const auto done = TRY(run_and_read(program, command, {.limit = limit, .most_bytes = 64U << 20}));
  if (done.status != 0) return fail(command[0], "failed");
  return split_words(done.out);
}

std::chrono::seconds copy_time(std::uint64_t bytes) {
  constexpr std::uint64_t kSlowest = 10'000'000;  // a second
  return std::chrono::seconds(60 + bytes / kSlowest);
}

Result<void> run_engine(const Words& words, std::chrono::milliseconds limit) {
  const auto program = TRY(find_program(words[0]));
  TRY(run_and_read(program, words, {.limit = limit, .fds = {{STDERR_FILENO, STDOUT_FILENO}}}));
  return {};
}

bool is_plain_name(const std::string& text) {
  return !text.empty() && text.front() != '-' && text.front() != '.' &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace heddle::ship
