// SPDX-License-Identifier: MIT
#include "tests/record/strace_log.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

/// Where a call's paths stand: {index of the directory's descriptor or -1, index of the path}.
using PathArgs = std::vector<std::pair<int, int>>;

const std::map<std::string, PathArgs>& path_args() {
  static const auto kCalls = [] {
    std::map<std::string, PathArgs> calls = {
        {"rename", {{-1, 0}, {-1, 1}}},  {"renameat", {{0, 1}, {2, 3}}},
        {"renameat2", {{0, 1}, {2, 3}}}, {"link", {{-1, 0}, {-1, 1}}},
        {"linkat", {{0, 1}, {2, 3}}},    {"symlink", {{-1, 1}}},
        {"symlinkat", {{1, 2}}},         {"inotify_add_watch", {{-1, 1}}}};
    for (const auto& name : words_of("open creat stat lstat access readlink execve chdir mkdir "
                                     "rmdir unlink mknod chmod chown lchown utime utimes truncate "
                                     "getxattr lgetxattr listxattr llistxattr setxattr lsetxattr "
                                     "statfs"))
      calls[name] = {{-1, 0}};
    for (const auto& name : words_of("openat openat2 newfstatat statx faccessat faccessat2 "
                                     "readlinkat execveat mkdirat unlinkat mknodat fchmodat "
                                     "fchownat utimensat futimesat"))
      calls[name] = {{0, 1}};
    return calls;
  }();
  return kCalls;
}

/// strace's C string with its escapes undone; `at` stands on the opening quote and ends behind the
/// closing one.
std::string unquote(const std::string& text, std::size_t& at) {
  std::string out;
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] != '\\') {
      out += text[at];
      continue;
    }
    const char c = text[++at];
    if (c >= '0' && c <= '7') {
      int value = 0;
      for (int n = 0; n < 3 && text[at] >= '0' && text[at] <= '7'; ++n, ++at)
        value = value * 8 + (text[at] - '0');
      --at;
      out += static_cast<char>(value);
    } else {
      out += c == 'n'   ? '\n'
             : c == 't' ? '\t'
             : c == 'r' ? '\r'
             : c == 'v' ? '\v'
             : c == 'f' ? '\f'
                        : c;
    }
  }
  ++at;
  return out;
}

std::size_t after_string(const std::string& text, std::size_t at) {
  (void)unquote(text, at);
  return at;
}

/// `a, "b, c", {d, e}) = ...` cut at its commas; `end` is behind the closing parenthesis.
std::vector<std::string> split_args(const std::string& text, std::size_t at, std::size_t& end) {
  std::vector<std::string> out;
  std::size_t begin = at;
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = after_string(text, at);
      continue;
    }
    if (c == '<' && depth == 0) {  // the path of a descriptor
      at = text.find('>', at);
      if (at == std::string::npos) break;
    }
    if (c == '(' || c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if ((c == ',' && depth == 0) || (c == ')' && depth-- == 0)) {
      if (at > begin) out.push_back(text.substr(begin, at - begin));
      if (c == ')') break;
      begin = text.find_first_not_of(' ', at + 1);
    }
    ++at;
  }
  end = std::min(at + 1, text.size());
  return out;
}

/// What stands between < and > of `3</usr/lib>`.
std::string annotation(const std::string& text) {
  const auto open = text.find('<');
  const auto close = text.rfind('>');
  return open == std::string::npos || close <= open ? std::string()
                                                    : text.substr(open + 1, close - open - 1);
}

using Cwd = std::shared_ptr<std::string>;

class Parser {
 public:
  explicit Parser(std::string cwd) : first_cwd_(std::move(cwd)) {}

  /// Whom each thread was made by, which the log may tell after the thread's own first call.
  void note_birth(int tid, const std::string& line) {
    const auto equals = line.rfind(" = ");
    if (equals == std::string::npos) return;
    const int child = std::atoi(line.c_str() + equals + 3);
    if (child > 0) births_[child] = {tid, line.find("CLONE_FS") != std::string::npos};
  }

  void call(int tid, const std::string& text, StraceLog& out) {
    out.tids.insert(tid);
    const auto open = text.find('(');
    const auto known = path_args().find(text.substr(0, open));
    const bool moves = text.starts_with("fchdir(");
    if (open == std::string::npos || (known == path_args().end() && !moves)) return;
    FileCall call;
    call.tid = tid;
    call.name = text.substr(0, open);
    std::size_t end = 0;
    call.args = split_args(text, open + 1, end);
    const auto equals = text.find(" = ", end - 1);
    if (equals == std::string::npos) return;
    const std::string result = text.substr(equals + 3);
    call.result = std::atol(result.c_str());
    if (result.starts_with("-1 ")) call.error = result.substr(3, result.find(' ', 3) - 3);
    if (result.starts_with("?")) return;
    call.opened = call.error.empty() ? annotation(result) : std::string();
    Cwd& cwd = cwd_of(tid);
    if (moves) {
      if (call.error.empty()) *cwd = annotation(call.args.at(0));
      return;
    }
    for (const auto& [dir, path] : known->second) {
      const auto index = static_cast<std::size_t>(path);
      std::size_t at = 0;
      if (index >= call.args.size() || call.args[index][0] != '"') return;
      std::string name = unquote(call.args[index], at);
      if (name.empty()) return;  // AT_EMPTY_PATH
      if (name[0] != '/') {
        std::string directory =
            dir >= 0 ? annotation(call.args[static_cast<std::size_t>(dir)]) : *cwd;
        if (directory.empty()) directory = *cwd;
        name = directory + "/" + name;
      }
      call.paths.push_back(std::move(name));
    }
    if (call.name.starts_with("symlink")) {
      std::size_t at = 0;
      call.link_target = unquote(call.args[0], at);
    }
    if (call.name == "chdir" && call.error.empty()) *cwd = call.paths[0];
    out.calls.push_back(std::move(call));
  }

 private:
  struct Birth {
    int parent;
    bool shares_cwd;
  };

  Cwd& cwd_of(int tid) {
    if (const auto known = cwds_.find(tid); known != cwds_.end()) return known->second;
    const auto born = births_.find(tid);
    Cwd cwd = std::make_shared<std::string>(first_cwd_);
    if (born != births_.end()) {
      const Cwd parents = cwd_of(born->second.parent);
      cwd = born->second.shares_cwd ? parents : std::make_shared<std::string>(*parents);
    }
    return cwds_[tid] = cwd;
  }

  std::string first_cwd_;
  std::map<int, Birth> births_;
  std::map<int, Cwd> cwds_;
};

}  // namespace

bool FileCall::has_flag(const std::string& flag) const {
  for (const auto& arg : args)
    if (arg.starts_with("O_") && ("|" + arg + "|").find("|" + flag + "|") != std::string::npos)
      return true;
  return false;
}

StraceLog parse_file_calls(const std::string& log, const std::string& cwd) {
  std::vector<std::pair<int, std::string>> whole;  // with the interrupted calls put together
  std::map<int, std::string> unfinished;
  Parser parser(cwd);
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::size_t used = 0;
    if (line.empty() || line[0] < '0' || line[0] > '9') continue;
    const int tid = std::stoi(line, &used);
    std::string text = line.substr(line.find_first_not_of(' ', used));
    constexpr std::string_view kUnfinished = " <unfinished ...>";
    if (text.ends_with(kUnfinished)) {
      unfinished[tid] = text.substr(0, text.size() - kUnfinished.size());
      continue;
    }
    if (text.starts_with("<... ")) {
      const auto resumed = text.find(" resumed>");
      if (resumed == std::string::npos) continue;
      text = unfinished[tid] + text.substr(resumed + 9);
    }
    if (text.starts_with("clone") || text.starts_with("fork(") || text.starts_with("vfork("))
      parser.note_birth(tid, text);
    whole.emplace_back(tid, std::move(text));
  }
  StraceLog out;
  for (const auto& [tid, text] : whole) parser.call(tid, text, out);
  return out;
}

namespace fs = std::filesystem;

ReplayedTree::ReplayedTree(const std::string& work) : work_(work) {
  known_[work] = {true, {}};
  for (const auto& entry : fs::recursive_directory_iterator(work))
    known_[entry.path()] = {
        true, entry.is_symlink() ? fs::read_symlink(entry.path()).string() : std::string()};
}

ReplayedTree::Entry ReplayedTree::look(const std::string& path) const {
  if (const auto known = known_.find(path); known != known_.end()) return known->second;
  if (path.starts_with(work_ + "/")) return {};
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return {};
  return {true, fs::is_symlink(status) ? fs::read_symlink(path, error).string() : std::string()};
}

ReplayedTree::Walk ReplayedTree::walk(std::string rest, bool follow_last) const {
  std::string directory;  // "" is the root
  int links = 0;
  while (!rest.empty()) {
    const auto begin = rest.find_first_not_of('/');
    if (begin == std::string::npos) break;
    const auto end = std::min(rest.find('/', begin), rest.size());
    const std::string part = rest.substr(begin, end - begin);
    rest.erase(0, end);
    const bool last = rest.find_first_not_of('/') == std::string::npos;
    if (part == ".") continue;
    if (part == "..") {
      directory.resize(directory.empty() ? 0 : directory.rfind('/'));
      continue;
    }
    const std::string next = directory + "/" + part;
    const Entry entry = look(next);
    if (!entry.there) return {next, true, false};
    if (entry.link.empty() || (last && rest.empty() && !follow_last)) {
      directory = next;
      continue;
    }
    if (++links > 40) return {next, false, true};
    if (entry.link[0] == '/') directory.clear();
    rest = entry.link + "/" + rest;
    if (last && rest.ends_with('/')) rest.pop_back();
  }
  return {directory.empty() ? "/" : directory, false, false};
}

std::string ReplayedTree::first_missing(const std::string& path, bool follow_last) const {
  const Walk done = walk(path, follow_last);
  return done.missing ? done.end : std::string();
}

std::string ReplayedTree::place_of(const std::string& path) const { return walk(path, false).end; }

void ReplayedTree::move(const std::string& from, const std::string& to) {
  std::map<std::string, Entry> moved;
  for (auto at = known_.lower_bound(from); at != known_.end() && at->first.starts_with(from);) {
    if (at->first.size() > from.size() && at->first[from.size()] != '/') {
      ++at;
      continue;
    }
    moved[to + at->first.substr(from.size())] = at->second;
    at = known_.erase(at);
  }
  if (moved.empty()) moved[to] = look(from);
  known_[from] = {};
  for (auto& [path, entry] : moved) known_[path] = entry;
}

void ReplayedTree::apply(const FileCall& call) {
  if (!call.error.empty()) return;
  const auto& name = call.name;
  if (name.starts_with("mknod")) special_.insert(place_of(call.paths[0]));
  if (name == "creat" || call.has_flag("O_CREAT"))
    known_[walk(call.paths[0], true).end] = {true, {}};
  else if (name.starts_with("mkdir") || name.starts_with("mknod"))
    known_[place_of(call.paths[0])] = {true, {}};
  else if (name.starts_with("symlink"))
    known_[place_of(call.paths[0])] = {true, call.link_target};
  else if (name.starts_with("link"))
    known_[place_of(call.paths[1])] = {true, look(place_of(call.paths[0])).link};
  else if (name.starts_with("unlink") || name == "rmdir")
    known_[place_of(call.paths[0])] = {};
  else if (name.starts_with("rename"))
    move(place_of(call.paths[0]), place_of(call.paths[1]));
}

}  // namespace heddle::test
