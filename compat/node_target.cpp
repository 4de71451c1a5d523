// SPDX-License-Identifier: MIT
#include "compat/node_target.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <cstdlib>

#include "compat/artifact_text.hpp"
#include "resolver/search/cpu_levels.hpp"
#include "resolver/search/search_path.hpp"

namespace heddle::compat {
namespace {

/// What this kernel executes natively.
bool runs_here(std::uint16_t machine) {
#if defined(__x86_64__)
  return machine == EM_X86_64 || machine == EM_386;
#elif defined(__aarch64__)
  return machine == EM_AARCH64 || machine == EM_ARM;
#else
  static_cast<void>(machine);
  return true;
#endif
}

void put(std::string& key, std::string_view text) {
  key += fmt::format("{}:", text.size());
  key += text;
}

/// The facts that steer the search, without the symbols: ld.so's search never asks for them.
ElfFacts without_symbols(const ElfFacts& elf) {
  ElfFacts out = elf;
  out.undefined_symbols.clear();
  out.exported_symbols.clear();
  return out;
}

}  // namespace

std::string interpreter_of(const ElfFacts& elf) {
  if (elf.interp) return *elf.interp;
  if (elf.machine == EM_386) return "/lib/ld-linux.so.2";
  if (elf.machine == EM_AARCH64) return "/lib/ld-linux-aarch64.so.1";
  return LoaderProfile{}.interpreter;
}

NodeTarget::NodeTarget(FactsSource& source, OsWorld world, std::string root, SearchOptions search)
    : source_(&source),
      world_(std::move(world)),
      root_(std::move(root)),
      search_(std::move(search)),
      packages_(root_) {}

Result<NodeTarget> NodeTarget::open(FactsSource& source, const std::string& root,
                                    SearchOptions search) {
  if (root.empty()) return NodeTarget(source, OsWorld(source), {}, std::move(search));
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(root.c_str(), nullptr),
                                                         &std::free);
  if (!real) return fail_errno(root, "cannot open the root file system");
  std::string folder = real.get();
  if (folder == "/") folder.clear();
  auto world = OsWorld::below(source, real.get());
  if (!world) return fail(std::move(world.error()));
  return NodeTarget(source, std::move(*world), std::move(folder), std::move(search));
}

std::string NodeTarget::outside(const std::string& path) {
  const auto name = allowed_ ? normal_path(path) : path;
  if (root_.empty()) return name;
  const auto real = world_.real_path(name);
  return real.empty() ? std::string() : root_ + real;
}

Result<const LoaderProfile*> NodeTarget::loader(const std::string& interpreter) {
  const auto known = loaders_.find(interpreter);
  if (known != loaders_.end()) return &known->second;
  auto profile = read_loader_profile(world_, interpreter);
  if (!profile) return fail(std::move(profile.error()));
  return &loaders_.emplace(interpreter, std::move(*profile)).first->second;
}

Result<Target::Loaded> NodeTarget::load(const Program& program) {
  Loaded out;
  const auto& elf = program.elf;
  const auto refuse = [&](Reason::Kind kind, std::string subject, std::string detail) {
    out.refused.emplace();
    out.refused->kind = kind;
    out.refused->subject = std::move(subject);
    out.refused->detail = std::move(detail);
    return out;
  };
  if (root_.empty() && !runs_here(elf.machine))
    return refuse(Reason::Kind::machine_differs, machine_name(elf.machine), {});
  const auto interpreter = allowed_ ? normal_path(interpreter_of(elf)) : interpreter_of(elf);
  if (!may_open(interpreter))
    return fail(interpreter_of(elf), "its loader is not looked at",
                "it lies outside the library directories");
  const auto file = world_.facts(interpreter);
  if (!file && (file.error().code() == ENOENT || file.error().code() == ENOTDIR))
    return refuse(Reason::Kind::interpreter_missing, interpreter, {});
  if (!file) return fail(file.error());
  if (file->elf.machine != elf.machine || file->elf.elf_class != elf.elf_class)
    return refuse(Reason::Kind::machine_differs, machine_name(elf.machine),
                  fmt::format("{} is of {}", interpreter, machine_name(file->elf.machine)));
  const auto profile = loader(interpreter);
  if (!profile) return fail(profile.error());
  ProgramWorld world(world_, allowed_.get(), program.path, without_symbols(elf));
  auto closure = resolve(world, **profile, program.path, search_);
  if (!closure) return fail(std::move(closure.error()));
  out.closure = std::move(*closure);
  out.not_searched = world.refused();
  // A program's closure is kept for others with equal needs: it must not hold a file whose facts
  // are the artifact's word.
  for (std::size_t i = 1; elf.interp && i < out.closure.objects.size(); ++i)
    if (out.closure.objects[i].path == program.path)
      return fail(program.path, "damaged artifact", "the program's path is that of a library");
  out.glibc_minor = (*profile)->glibc_minor;
  return out;
}

std::string NodeTarget::closure_key(const Program& program) {
  const auto& elf = program.elf;
  std::string key = fmt::format("{} {} {} {};", elf.machine, elf.elf_class, elf.flags, elf.flags_1);
  put(key, interpreter_of(elf));
  put(key, elf.soname.value_or(""));
  key += elf.rpath ? 'r' : '-';
  put(key, elf.rpath.value_or(""));
  key += elf.runpath ? 'r' : '-';
  put(key, elf.runpath.value_or(""));
  bool tokens = has_token(search_.ld_library_path) || has_token(search_.ld_preload) ||
                has_token(elf.rpath.value_or("")) || has_token(elf.runpath.value_or(""));
  for (const auto& dependency : elf.dependencies) {
    key += dependency_kind_name(dependency.kind);
    put(key, dependency.name);
    tokens = tokens || has_token(dependency.name);
  }
  // A library's own path counts as a name; a program's only by what $ORIGIN makes of it.
  if (tokens || !elf.interp) put(key, program.path);
  return key;
}

std::optional<Result<ElfFacts>> NodeTarget::symbols(const std::string& path) {
  auto file = source_->facts(path, FactsDetail::symbols);
  if (!file) return Result<ElfFacts>(fail(std::move(file.error())));
  return Result<ElfFacts>(std::move(file->elf));
}

void NodeTarget::prefetch_symbols(const std::vector<std::string>& paths) {
  source_->prefetch(paths, FactsDetail::symbols);
}

ElfNotes NodeTarget::notes(const std::string& path) {
  const auto file = world_.open_regular(path);
  if (!file) return {};
  return read_elf_notes(file->get(), path).value_or(ElfNotes{});
}

std::string NodeTarget::find_library(const Program& program, const std::string& soname) {
  Program asking = program;
  asking.elf.dependencies = {{Dependency::Kind::needed, soname}};
  const auto [known, is_new] = found_.try_emplace(closure_key(asking));
  if (!is_new) return known->second;
  const auto loaded = load(asking);
  if (!loaded || loaded->refused) return {};
  for (const auto& object : loaded->closure.objects)
    if (object.requested_as == soname) known->second = object.path;
  return known->second;
}

bool NodeTarget::has_file(const std::string& path) {
  return may_open(path) && !world_.real_path(allowed_ ? normal_path(path) : path).empty();
}

std::string NodeTarget::package_of(const std::string& path) {
  // The database has the path as it was unpacked: with /usr or without.
  auto package = packages_.owner(path);
  if (!package.empty() || !may_open(path)) return package;
  return packages_.owner(world_.real_path(allowed_ ? normal_path(path) : path));
}

std::uint32_t NodeTarget::isa_levels() {
  static const auto kLevels = read_cpu_levels().isa_levels;
  return kLevels;
}

std::string NodeTarget::kernel() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}

}  // namespace heddle::compat
