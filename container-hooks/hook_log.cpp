// SPDX-License-Identifier: MIT
#include "container-hooks/hook_log.hpp"

#include <ctime>

#include "base/escape.hpp"
#include "base/log.hpp"
#include "base/log_file.hpp"
#include "container-hooks/hook_progress.hpp"

namespace heddle {

Result<Fd> HookLog::open() const {
  note_step("opening", file_);
  return open_log(file_);
}

void HookLog::keep_open() {
  if (file_.empty()) return;
  if (auto file = open()) kept_ = std::move(*file);
}

void HookLog::append(const std::string& text) const {
  if (file_.empty()) return;
  const auto file = kept_ ? Result<Fd>(Fd()) : open();
  if (!file) return;
  note_step("writing to", file_);
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char stamp[32] = "";
  if (::gmtime_r(&now, &parts))
    (void)std::strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &parts);
  (void)write_all(kept_ ? kept_.get() : file->get(),
                  std::string(stamp) + " " + escape_for_terminal(container_) + " " + text + "\n",
                  file_);
}

void HookLog::error(const Error& error) const {
  std::string line = error.message();
  if (!error.hint().empty()) line += " (" + error.hint() + ")";
  line = escape_for_terminal(line);
  say(line);
  append("error: " + line);
}

void HookLog::warning(const std::string& text) const {
  const auto line = escape_for_terminal(text);
  warn(line);
  append("warning: " + line);
}

void HookLog::note(const std::string& text) const { append(escape_for_terminal(text)); }

}  // namespace heddle
