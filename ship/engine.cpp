// SPDX-License-Identifier: MIT
#include "ship/engine.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/child.hpp"
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

Result<Output> run_command(const Words& words, int out) {
  const auto program = TRY(find_program(words[0]));
  Pipe pipe = TRY(make_pipe());
  const Fd null = TRY(open_file("/dev/null", O_RDONLY));
  SpawnOptions options;
  options.fds = {{null.get(), STDIN_FILENO}, {out < 0 ? pipe.write_end.get() : out, STDOUT_FILENO}};
  auto child = TRY(spawn(program, words, options));
  pipe.write_end.reset();
  Output done;
  if (out < 0) done.text = TRY(read_all(pipe.read_end.get(), words[0]));
  done.status = TRY(child.wait());
  return done;
}

}  // namespace heddle::ship
