// SPDX-License-Identifier: MIT
#include "container-hooks/oci/container_program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/elf_file.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/mount_calls.hpp"
#include "base/open_regular.hpp"

namespace heddle::hook {
namespace {

using Words = std::vector<std::string>;

bool sets_search(const std::string& assignment) {
  return assignment.starts_with("PATH=") || assignment.starts_with("LD_");
}

class ProgramSearch {
 public:
  ProgramSearch(int root, const ContainerConfig& config) : root_(root), config_(config) {}

  std::string run() const {
    Words words = config_.args;
    if (words.empty()) return {};
    auto out = find(words[0]);
    for (int depth = 0; !out.empty() && depth < kMostScripts; ++depth) {
      words = executed(words);
      const auto next = words.empty() ? std::string() : find(words[0]);
      if (next.empty()) break;
      if (is_loaded_by_glibc(next, 0)) out = next;
    }
    return out;
  }

 private:
  bool is_program(const std::string& path) const {
    const auto file = find_in_root(root_, path, 0);
    struct stat status {};
    return file && ::fstat(file->get(), &status) == 0 && S_ISREG(status.st_mode) &&
           (status.st_mode & 0111) != 0;
  }

  /// As the runtime finds it: by the container's PATH, or from its working directory.
  std::string find(const std::string& word) const {
    const auto from_cwd = [&](const std::string& path) {
      return path.starts_with('/') ? path : config_.cwd + "/" + path;
    };
    if (word.empty() || word.find('\0') != word.npos) return {};
    if (word.find('/') != word.npos) {
      auto path = from_cwd(word);
      return is_program(path) ? path : "";
    }
    const auto search_path = variable_of(config_, "PATH");
    for (std::size_t at = 0; at <= search_path.size();) {
      const auto end = std::min(search_path.find(':', at), search_path.size());
      auto path = from_cwd(search_path.substr(at, end - at)) + "/" + word;
      if (end > at && is_program(path)) return path;
      at = end + 1;
    }
    return {};
  }

  /// Neither static nor musl's, nor a script without a #! line, which only a shell executes.
  bool is_loaded_by_glibc(const std::string& path, int depth) const {
    const auto place = find_in_root(root_, path, 0);
    const auto file = place ? open_regular_at(place->get(), path) : Result<Fd>(Fd());
    if (!file || !*file || depth > kMostScripts) return false;
    std::string head(kFirstLine, '\0');
    const auto size = ::pread(file->get(), head.data(), head.size(), 0);
    head.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    if (const auto interpreter = script_interpreter(head); !interpreter.empty()) {
      const auto named = env_program(head);
      return is_loaded_by_glibc(named.empty() ? interpreter : find(named), depth + 1);
    }
    const auto bytes = file_bytes(file->get());
    const auto elf = ElfFile::read(bytes);
    const auto name = elf ? elf->interpreter() : Result<std::optional<std::string>>(std::nullopt);
    return name && *name && (*name)->find("musl") == std::string::npos;
  }

  /// The words that a program known for it executes; none: another program, or what ld.so or the
  /// shell finds may change before.
  Words executed(const Words& args) const {
    const auto name = args[0].substr(args[0].rfind('/') + 1);
    const auto is_one_of = [&](std::initializer_list<const char*> names) {
      return std::ranges::find(names, name) != names.end();
    };
    if (is_one_of({"sh", "bash", "dash"})) return of_shell(args);
    auto at = args.begin() + 1;
    const auto is_option = [&] { return at != args.end() && at->starts_with('-'); };
    if (is_one_of(
            {"podman-init", "docker-init", "catatonit", "tini", "tini-static", "dumb-init"})) {
      while (is_option()) {
        const auto& option = *at++;
        if (option == "--") break;
        const bool has_argument = option == "-p" || option == "-e" || option == "-r";
        if (has_argument && at != args.end()) ++at;
      }
    } else if (is_one_of({"gosu", "su-exec"})) {
      if (is_option() || at == args.end()) return {};
      ++at;  // the user
    } else if (name == "env") {
      for (; at != args.end() && at->find('=') != at->npos; ++at)
        if (sets_search(*at)) return {};
      if (is_option()) return {};
    } else {
      return {};
    }
    return {at, args.end()};
  }

  Words of_shell(const Words& args) const {
    if (args.size() < 3 || !args[1].starts_with('-') || !args[1].ends_with('c') ||
        args[1].find_first_not_of("eux", 1) != args[1].size() - 1 ||
        std::ranges::any_of(config_.environment, [](const std::string& entry) {
          return entry.starts_with("BASH_ENV=") || entry.starts_with("BASH_FUNC_");
        }))
      return {};
    const auto command = one_command(args[2]);
    return std::ranges::any_of(command.assignments, sets_search) ? Words{} : command.words;
  }

  const int root_;
  const ContainerConfig& config_;
};

}  // namespace

std::string container_program(const ContainerConfig& config) {
  const auto root = open_file(config.rootfs, O_PATH | O_DIRECTORY);
  return root ? ProgramSearch(root->get(), config).run() : std::string();
}

}  // namespace heddle::hook
