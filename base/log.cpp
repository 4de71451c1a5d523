// SPDX-License-Identifier: MIT
#include "base/log.hpp"

#include <unistd.h>

namespace heddle {
namespace {

const char* g_program_name = "heddle";

void write_line(std::string_view kind, std::string_view message, std::string_view hint) {
  std::string line =
      std::string(g_program_name) + ": " + std::string(kind) + std::string(message) + "\n";
  if (!hint.empty()) line += "hint: " + std::string(hint) + "\n";
  // Talk that cannot be delivered (closed stderr) has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void set_program_name(const char* name) { g_program_name = name; }
void say(std::string_view message) { write_line("", message, {}); }
void warn(std::string_view message) { write_line("warning: ", message, {}); }
void report(const Error& error) { write_line("", error.message(), error.hint()); }
void warn(const Error& error) { write_line("warning: ", error.message(), error.hint()); }

}  // namespace heddle
