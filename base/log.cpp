// SPDX-License-Identifier: MIT
#include "base/log.hpp"

#include <unistd.h>

#include "base/fd.hpp"
#include "base/run_main.hpp"

namespace heddle {
namespace {

const char* g_program_name = "heddle";

void write_line(std::string_view kind, std::string_view message, std::string_view hint) {
  std::string line =
      std::string(g_program_name) + ": " + std::string(kind) + std::string(message) + "\n";
  if (!hint.empty()) line += "hint: " + std::string(hint) + "\n";
  say_text(line);
}

}  // namespace

void say_text(std::string_view text) {
  const SigpipeHeld held;
  // A failure (closed stderr) cannot be reported.
  (void)write_all(STDERR_FILENO, text, "stderr");
}

void set_program_name(const char* name) { g_program_name = name; }
void say(std::string_view message) { write_line("", message, {}); }
void warn(std::string_view message) { write_line("warning: ", message, {}); }
void report(const Error& error) { write_line("", error.message(), error.hint()); }
void warn(const Error& error) { write_line("warning: ", error.message(), error.hint()); }

}  // namespace heddle
