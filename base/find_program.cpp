// SPDX-License-Identifier: MIT
#include "base/find_program.hpp"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/elf_file.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"

namespace heddle {
namespace {

/// 0, or the errno for which `path` cannot be executed.
int exec_error(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  return S_ISREG(st.st_mode) && ::access(path.c_str(), X_OK) == 0 ? 0 : EACCES;
}

/// The path after a script's #!, or in an ELF file's PT_INTERP; "": none.
std::string interpreter_of(const std::string& path) {
  char head[4096] = {};
  const auto fd = open_regular(path);
  if (!fd || ::pread(fd->get(), head, sizeof(head) - 1, 0) < 2) return {};
  if (auto script = script_interpreter({head, sizeof(head)}); !script.empty()) return script;
  const FileBytes bytes = file_bytes(fd->get());
  const auto elf = ElfFile::read(bytes);
  const auto name = elf ? elf->interpreter() : Result<std::optional<std::string>>();
  return name ? name->value_or("") : "";
}

}  // namespace

Result<std::string> find_program(const std::string& name) {
  const char* variable = std::getenv("PATH");
  return find_program(name, variable ? variable : "/bin:/usr/bin");  // execvp(3): _CS_PATH
}

Result<std::string> find_program(const std::string& name, const std::string& path_variable) {
  if (name.empty()) return fail_errno("''", "cannot run", ENOENT);
  if (name.find('/') != std::string::npos) {
    if (const int error = exec_error(name); error != 0)
      return fail_errno(name, "cannot run", error);
    return name;
  }
  int failure = ENOENT;
  for (std::size_t at = 0; at <= path_variable.size();) {
    const std::size_t end = std::min(path_variable.find(':', at), path_variable.size());
    const std::string directory = path_variable.substr(at, end - at);
    std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
    const int error = exec_error(candidate);
    if (error == 0) return candidate;
    if (error == EACCES || error == EISDIR)
      failure = EACCES;  // the search continues, as in execvp(3)
    at = end + 1;
  }
  return fail_errno(name, "cannot run", failure);
}

int report_exec_failure(const std::string& name, int error) {
  // execve(2) also returns ENOENT when the file exists and its interpreter does not.
  const auto path = error == ENOENT ? find_program(name) : Result<std::string>(name);
  const std::string interpreter = path && error == ENOENT ? interpreter_of(*path) : "";
  if (!interpreter.empty())
    report(Error(name, "cannot run",
                 "its interpreter " + escape_for_terminal(interpreter) + " is missing"));
  else
    report(Error::from_errno(name.empty() ? "''" : name, "cannot run", error));
  return error == ENOENT ? 127 : 126;
}

std::string script_interpreter(std::string_view bytes) {
  if (!bytes.starts_with("#!")) return {};
  bytes = bytes.substr(0, kFirstLine);
  const auto begin = bytes.find_first_not_of(" \t", 2);
  if (begin == bytes.npos) return {};
  constexpr std::string_view kEnds(" \t\n\0", 4);
  return std::string(bytes.substr(begin, bytes.find_first_of(kEnds, begin) - begin));
}

std::string env_program(std::string_view bytes, std::vector<std::string>* arguments) {
  const auto interpreter = script_interpreter(bytes);
  if (interpreter.substr(interpreter.rfind('/') + 1) != "env") return {};
  constexpr std::string_view kEnds("\n\0", 2);
  bytes = bytes.substr(0, std::min(kFirstLine, bytes.find_first_of(kEnds)));
  std::istringstream words{std::string(bytes.substr(bytes.find(interpreter) + interpreter.size()))};
  for (std::string word; words >> word;) {
    if (word.starts_with("-S")) word.erase(0, 2);
    if (word == "-u" || word == "-C")
      words >> word;  // their arguments
    else if (!word.empty() && word[0] != '-' && word.find('=') == word.npos) {
      for (std::string next; arguments && words >> next;) arguments->push_back(next);
      return word;
    }
  }
  return {};
}

ShellCommand one_command(const std::string& text) {
  for (std::size_t at = 0; (at = text.find_first_of(";|(`\n&", at)) != text.npos; ++at)
    if (text[at] != '&' || at == 0 || text[at - 1] != '>') return {};  // 2>&1
  ShellCommand out;
  std::istringstream list(text);
  for (std::string word; list >> word;) out.words.push_back(word);
  auto word = out.words.begin();
  if (word != out.words.end() && *word == "exec") ++word;
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._+-=:,").find(char(c)) != std::string::npos;
  };
  const auto is_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  for (; word != out.words.end(); ++word) {
    if (!std::ranges::all_of(*word, is_plain)) return {};
    const auto name = word->substr(0, word->find('='));
    if (name == *word || name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) ||
        !std::ranges::all_of(name, is_of_name))
      break;
    out.assignments.push_back(*word);
  }
  out.words.erase(out.words.begin(), word);
  return out;
}

}  // namespace heddle
