// SPDX-License-Identifier: MIT
#include "resolver/build/app_inputs.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/elf_file.hpp"
#include "base/escape.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

enum class FileKind { script, program, library, static_program, other };

struct Peek {
  FileKind kind = FileKind::other;
  std::string first_line;  ///< of a script
};

/// By the headers alone, without a worker.
FileKind elf_kind(int fd) {
  const FileBytes bytes = file_bytes(fd);
  const auto elf = ElfFile::read(bytes);
  if (!elf) return FileKind::other;
  if (!elf->is_64()) return FileKind::program;
  if (elf->header.e_type != ET_EXEC && elf->header.e_type != ET_DYN) return FileKind::other;
  if (elf->segment(PT_INTERP) != nullptr) return FileKind::program;
  if (elf->header.e_type != ET_DYN || elf->segment(PT_DYNAMIC) == nullptr)
    return FileKind::static_program;
  // Only this flag tells a file of ld -static-pie from a library.
  const auto entries = elf->dynamic_entries().value_or(std::vector<Elf64_Dyn>());
  const bool is_pie = std::ranges::any_of(entries, [](const Elf64_Dyn& entry) {
    return entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_PIE) != 0;
  });
  return is_pie ? FileKind::static_program : FileKind::library;
}

Result<Peek> peek(const std::string& path) {
  const auto fd = open_regular(path);
  if (!fd && (fd.error().code() == ENOEXEC || fd.error().code() == EISDIR)) return Peek{};
  if (!fd) return fail(fd.error());
  std::string head(kFirstLine, '\0');
  const ssize_t n = ::pread(fd->get(), head.data(), head.size(), 0);
  if (n < 0) return fail_errno(path, "cannot read");
  head.resize(static_cast<std::size_t>(n));
  if (head.starts_with("#!")) return Peek{FileKind::script, head.substr(0, head.find('\n'))};
  if (head.starts_with(ELFMAG)) return Peek{elf_kind(fd->get()), {}};
  return Peek{};
}

class Collector {
 public:
  /// `named`: by the user, not found in a directory.
  Collector(AppInputs& out, bool named) : out_(out), named_(named) {}

  Result<void> add_file(const std::string& path, int depth = 0) {
    const auto seen = TRY(peek(path));
    std::error_code error;
    const std::string real = fs::canonical(path, error).string();
    if (error) return fail_errno(path, "cannot resolve", error.value());
    if (seen.kind == FileKind::script) return add_script(path, seen.first_line, depth);
    if (seen.kind == FileKind::other)
      return fail(path, "not a program", "neither an ELF file nor a #! script",
                  MapReader::open(path) ? "it is a map: fs-resolve show, lookup, verify" : "");
    if (seen.kind == FileKind::static_program)
      out_.notes.push_back(escape_for_terminal(path) + ": static program: nothing to resolve");
    else
      add_root(real, seen.kind == FileKind::program ? RootIs::program : RootIs::library);
    return {};
  }

 private:
  void add_root(const std::string& path, RootIs kind) {
    const auto known = std::ranges::find(out_.roots, path, &AppRoot::path);
    if (known == out_.roots.end())
      out_.roots.push_back({path, kind, named_});
    else
      known->required |= named_;
  }

  Result<void> add_script(const std::string& path, const std::string& line, int depth) {
    if (depth >= kMostScripts) return fail_errno(path, "script of scripts", ELOOP);
    const auto interpreter = script_interpreter(line);
    if (interpreter.empty()) return fail(path, "not a program", "its #! line names no interpreter");
    if (auto added = add_file(interpreter, depth + 1); !added)
      return fail(path, "its interpreter cannot be used", added.error().message());
    const auto named = env_program(line);
    if (named.empty()) return {};
    const auto found = TRY(find_program(named));
    return add_file(found, depth + 1);
  }

  AppInputs& out_;
  bool named_;
};

Result<void> add_directory(AppInputs& out, const std::string& directory) {
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
  std::ranges::sort(files);
  Collector collector(out, false);
  for (const auto& file : files) {
    const auto seen = peek(file);
    struct stat st {};
    const bool executable = ::stat(file.c_str(), &st) == 0 && (st.st_mode & 0111) != 0;
    if (seen && seen->kind != FileKind::program && seen->kind != FileKind::library &&
        !(seen->kind == FileKind::script && executable))
      continue;
    if (auto added = collector.add_file(file); !added) out.notes.push_back(added.error().message());
  }
  return {};
}

}  // namespace

Result<void> add_app(AppInputs& out, const std::string& app) {
  struct stat st {};
  Collector collector(out, true);
  if (::stat(app.c_str(), &st) == 0)
    return S_ISDIR(st.st_mode) ? add_directory(out, app) : collector.add_file(app);
  if (app.find('/') != std::string::npos || errno != ENOENT) return fail_errno(app, "cannot stat");
  auto found = find_program(app);
  if (found) return collector.add_file(*found);
  if (found.error().code() == ENOENT)
    return fail(Error::with_code(ENOENT, app, "not found", "neither here nor in $PATH"));
  return fail(std::move(found.error()));
}

}  // namespace heddle
