// SPDX-License-Identifier: MIT
#include "resolver/build/app_inputs.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/elf_file.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

// fs/binfmt_script.c and include/uapi/linux/binfmts.h: the line is cut at BINPRM_BUF_SIZE, and four
// interpreters of interpreters are followed (fs/exec.c, exec_binprm).
constexpr std::size_t kScriptLine = 256;
constexpr int kScriptDepth = 5;

/// Whether the user named the file, or it lay in a directory he named.
enum class Origin { named, directory };

enum class FileKind { script, program, library, static_program, other };

struct Peek {
  FileKind kind = FileKind::other;
  std::string first_line;  ///< of a script, without "#!"
};

/// Sorts the ELF files of a directory by their headers, without a worker for each.
FileKind elf_kind(int fd) {
  const FileBytes bytes = file_bytes(fd);
  const auto elf = ElfFile::read(bytes);
  if (!elf) return FileKind::other;
  if (!elf->is_64()) return FileKind::program;
  if (elf->header.e_type != ET_EXEC && elf->header.e_type != ET_DYN) return FileKind::other;
  if (elf->segment(PT_INTERP) != nullptr) return FileKind::program;
  if (elf->header.e_type != ET_DYN || elf->segment(PT_DYNAMIC) == nullptr)
    return FileKind::static_program;
  // ld -static-pie makes what looks like a library, but for this flag.
  const auto entries = elf->dynamic_entries().value_or(std::vector<Elf64_Dyn>());
  const bool is_pie = std::any_of(entries.begin(), entries.end(), [](const Elf64_Dyn& entry) {
    return entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_PIE) != 0;
  });
  return is_pie ? FileKind::static_program : FileKind::library;
}

Result<Peek> peek(const std::string& path) {
  const auto fd = open_regular(path);
  if (!fd && (fd.error().code() == ENOEXEC || fd.error().code() == EISDIR)) return Peek{};
  if (!fd) return fail(fd.error());
  std::string head(kScriptLine, '\0');
  const ssize_t n = ::pread(fd->get(), head.data(), head.size(), 0);
  if (n < 0) return fail_errno(path, "cannot read");
  head.resize(static_cast<std::size_t>(n));
  if (head.starts_with("#!")) return Peek{FileKind::script, head.substr(2, head.find('\n') - 2)};
  if (head.starts_with(ELFMAG)) return Peek{elf_kind(fd->get()), {}};
  return Peek{};
}

std::vector<std::string> split_words(const std::string& line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(" \t", at);
    if (begin == std::string::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    at = end;
  }
  return words;
}

void add_root(AppInputs& out, const std::string& path, RootIs kind, Origin origin) {
  const bool required = origin == Origin::named;
  for (auto& root : out.roots) {
    if (root.path != path) continue;
    root.required = root.required || required;
    return;
  }
  out.roots.push_back({path, kind, required});
}

Result<void> add_file(AppInputs& out, const std::string& path, const std::string& path_variable,
                      Origin origin, int depth);

/// What `#!/usr/bin/env [-S] [NAME=VALUE...] NAME` starts.
Result<void> add_env_target(AppInputs& out, const std::vector<std::string>& words,
                            const std::string& path_variable, Origin origin, int depth) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::string word = words[i];
    if (word.starts_with("-S")) word.erase(0, 2);
    if (word.empty() || word[0] == '-' || word.find('=') != std::string::npos) continue;
    const auto found = TRY(find_program(word, path_variable));
    return add_file(out, found, path_variable, origin, depth + 1);
  }
  return {};
}

Result<void> add_script(AppInputs& out, const std::string& path, const std::string& line,
                        const std::string& path_variable, Origin origin, int depth) {
  if (depth >= kScriptDepth) return fail_errno(path, "script of scripts", ELOOP);
  const auto words = split_words(line);
  if (words.empty()) return fail(path, "not a program", "its #! line names no interpreter");
  if (auto added = add_file(out, words[0], path_variable, origin, depth + 1); !added) {
    return fail(path, "its interpreter cannot be used", added.error().message());
  }
  if (fs::path(words[0]).filename() == "env")
    return add_env_target(out, words, path_variable, origin, depth);
  return {};
}

Result<void> add_file(AppInputs& out, const std::string& path, const std::string& path_variable,
                      Origin origin, int depth) {
  const auto seen = TRY(peek(path));
  std::error_code error;
  const std::string real = fs::canonical(path, error).string();
  if (error) return fail_errno(path, "cannot resolve", error.value());
  switch (seen.kind) {
    case FileKind::script:
      return add_script(out, path, seen.first_line, path_variable, origin, depth);
    case FileKind::program:
      add_root(out, real, RootIs::program, origin);
      return {};
    case FileKind::library:
      add_root(out, real, RootIs::library, origin);
      return {};
    case FileKind::static_program:
      out.notes.push_back(escape_for_terminal(path) + ": static program: nothing to resolve");
      return {};
    case FileKind::other:
      break;
  }
  return fail(path, "not a program", "neither an ELF file nor a #! script");
}

Result<void> add_directory(AppInputs& out, const std::string& directory,
                           const std::string& path_variable) {
  std::error_code error;
  fs::recursive_directory_iterator walk(directory, fs::directory_options::skip_permission_denied,
                                        error);
  if (error) return fail_errno(directory, "cannot list", error.value());
  std::vector<std::string> files;
  for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (error) return fail_errno(directory, "cannot list", error.value());
    if (walk->is_regular_file(error) && !walk->is_symlink(error))
      files.push_back(walk->path().string());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    auto seen = peek(file);
    if (!seen) {
      out.notes.push_back(seen.error().message());
      continue;
    }
    struct stat st {};
    const bool executable = ::stat(file.c_str(), &st) == 0 && (st.st_mode & 0111) != 0;
    const bool wanted = seen->kind == FileKind::program || seen->kind == FileKind::library ||
                        (seen->kind == FileKind::script && executable);
    if (!wanted) continue;
    if (auto added = add_file(out, file, path_variable, Origin::directory, 0); !added)
      out.notes.push_back(added.error().message());
  }
  return {};
}

}  // namespace

Result<void> add_app(AppInputs& out, const std::string& app, const std::string& path_variable) {
  struct stat st {};
  if (::stat(app.c_str(), &st) != 0) {
    if (app.find('/') != std::string::npos || errno != ENOENT)
      return fail_errno(app, "cannot stat");
    auto found = find_program(app, path_variable);
    if (!found && found.error().code() == ENOENT)
      return fail(Error::with_code(ENOENT, app, "not found", "neither here nor in $PATH"));
    if (!found) return fail(std::move(found.error()));
    return add_file(out, *found, path_variable, Origin::named, 0);
  }
  if (S_ISDIR(st.st_mode)) return add_directory(out, app, path_variable);
  return add_file(out, app, path_variable, Origin::named, 0);
}

}  // namespace heddle
