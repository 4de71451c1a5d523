// SPDX-License-Identifier: MIT
//
// The decision for a container, in three steps. Facts: the closures of the container's programs
// (ContainerSide), the image's MPI (ContainerStack), the closure of the host's MPI (HostSide).
// Constraints: the ABI check; only if it passes, the host's MPI replaces the image's. The solver
// (placement.cpp): the side and the place of each further library.
#include "resolver/policy/decide.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>

#include "base/try.hpp"
#include "resolver/policy/solver.hpp"

namespace heddle::policy {
namespace {

MpiSide side_of(const MpiIdentity& identity, const std::string& soname, const std::string& path) {
  return {identity.family, identity.version, identity.abi, soname, path};
}

/// "MPICH 4.0.2".
std::string describe(const MpiIdentity& identity) {
  return mpi_family_title(identity.family) +
         (identity.version.empty() ? "" : " " + identity.version);
}
/// "MPICH 4.0.2 (/usr/lib/libmpi.so.12, mpich-12)".
std::string describe(const MpiIdentity& identity, const std::string& path) {
  return describe(identity) + " (" + path + ", " + identity.abi + ")";
}

/// Open MPI's MPI_COMM_WORLD and the like: data that a program may have a copy of. Without the
/// library's, ld.so ends the program at the start.
bool is_handle(const std::string& name) { return name.starts_with("ompi_mpi_"); }

/// One run of decide().
class Decider {
 public:
  Decider(OsWorld& host, OsWorld& inside, const DecideOptions& options)
      : options_(options), inside_(inside, options.path), host_(host) {
    search_.ld_library_path = options.library_path;
    search_.ld_preload = options.preload;
    out_.programs = options.programs;
    out_.mount_point = options.mount_point;
  }

  Result<Decision> run() {
    auto done = decide();
    if (!done && !ended_) return fail(std::move(done.error()));
    return std::move(out_);
  }

 private:
  /// Both end decide() with an outcome; run() discards the error.
  tl::unexpected<Error> refuse(const std::string& reason, const std::string& hint = "") {
    out_.hint = hint;
    return end(Outcome::incompatible, reason);
  }
  tl::unexpected<Error> end(Outcome outcome, const std::string& reason) {
    out_.outcome = outcome;
    out_.reason = reason;
    ended_ = true;
    return fail("", reason);
  }

  Result<void> decide() {
    TRY(read_programs());
    glibc_ = TRY(read_glibc_family(host_.world()));
    host_.set_loader(glibc_.loader);
    out_.host_glibc = glibc_.version;
    out_.container_glibc = inside_.glibc();
    out_.interpreter = inside_.loader().interpreter;
    out_.interpreter_file = inside_.world().real_path(out_.interpreter);
    ImageSearch image;
    if (options_.mpi_wanted) image = search_image(inside_);
    if (!image.complete)
      out_.warnings.push_back(
          "the image has more files than fs-resolve searches: an MPI in a directory of its "
          "own may be left as it is");
    add_modules(image.modules);
    stack_ = find_container_stack(inside_);
    add_stack_copies(inside_, stack_, image.libraries);
    out_.asked = std::move(image.watched);
    TRY(choose_mpi());
    if (install_ != nullptr) TRY(check_abi());
    TRY(take_host_libraries());
    SideChoice sides(host_, inside_, stack_, directories_);
    if (install_ != nullptr) force_mpi(sides);
    for (const auto& root : options_.roots)
      sides.force(root.library.soname, root.aliases, "the host's was requested");
    auto solved =
        solve({inside_, host_, stack_, glibc_, search_, options_.mount_point}, sides, out_);
    if (!solved) return refuse(solved.error().message(), solved.error().hint());
    out_.loads_mpi = stack_.needed_by_program;
    const auto is_left = [&](const StackPart& part) {
      return !part.is_library() || stack_.is_preserved(part);
    };
    if (install_ == nullptr || !options_.roots.empty() || !stack_.missing.empty() ||
        !std::ranges::all_of(stack_.parts, is_left))
      return {};
    out_.binds.clear();
    out_.directories.clear();
    out_.environment.clear();
    out_.changed.clear();
    return end(Outcome::nothing, "the host's MPI can replace none of the image's");
  }

  Result<void> read_programs() {
    std::string reason;
    for (const auto& name : options_.programs) {
      const auto added = inside_.add_program(name, search_, reason);
      if (added) continue;
      if (added.error().code() == ENOTSUP)
        return refuse(added.error().message() + "; the host's MPI needs glibc",
                      "use an image that is built on glibc");
      if (added.error().code() == ENOENT && inside_.world().real_path(name).empty())
        return fail_errno(
            name, "the container has no such program", ENOENT,
            "name it as the container does: --program, the annotation heddle.program");
      return fail(added.error());
    }
    if (inside_.programs().empty()) return end(Outcome::nothing, reason);
    return {};
  }

  /// Adds the modules that need the first MPI of the host for which there are any as programs.
  void add_modules(const std::vector<std::string>& modules) {
    bool added = false;
    for (const auto& install : options_.installs) {
      const auto is_it = [&](const std::string& name) {
        return stands_for(install.aliases, install.identity.abi, name);
      };
      for (const auto& path : modules) {
        const auto file = inside_.library(path);
        std::string reason;
        if (!file || std::ranges::none_of(needed_names(file->elf), is_it) ||
            !inside_.add_program(path, search_, reason).value_or(false))
          continue;
        out_.programs.push_back(path);
        added = true;
      }
      if (added) return;
    }
  }

  /// The host's MPI whose ABI is that of the container's.
  void match_mpi() {
    for (const auto& install : options_.installs) {
      install_ = &install;
      for (const auto& part : stack_.parts)
        if (part.is_own && part.identity.abi == install.identity.abi) {
          library_ = part;
          return;
        }
      if (stack_.own_library() != nullptr) continue;
      for (const auto& name : stack_.missing)
        if (stands_for(install.aliases, install.identity.abi, name)) return;
    }
    install_ = nullptr;
    if (const auto* library = stack_.own_library()) library_ = *library;
  }

  Result<void> choose_mpi() {
    const bool has_none = options_.installs.empty() && options_.roots.empty();
    if (has_none && !options_.mpi_wanted)
      return end(Outcome::nothing, "no library of the host is requested");
    const auto& program = inside_.programs()[0].path;
    if (stack_.empty())  // the image has only copies
      for (auto& part : stack_.parts) part.is_own = true;
    if (stack_.empty() && options_.roots.empty())
      return end(Outcome::nothing, program + " needs no MPI library, and the image has none");
    if (has_none)
      return refuse("the host has no MPI for the container",
                    "fs-resolve mpi shows what is found; --mpi PREFIX adds one");
    if (stack_.empty() || options_.installs.empty()) return {};
    match_mpi();
    if (library_)
      out_.container_mpi = side_of(library_->identity, library_->soname, library_->path);
    if (install_ == nullptr) {
      std::string host;
      for (const auto& install : options_.installs)
        host += (host.empty() ? "" : " and ") + describe(install.identity, install.library.path);
      const auto wants =
          library_ ? describe(library_->identity, library_->path) +
                         ": the host has no MPI of that ABI, only "
                   : program + " needs " + stack_.missing.front() + ": the host has only ";
      return refuse("the container's " + wants + host,
                    "take an image built with the host's MPI family, or name another of the host's "
                    "with --mpi PREFIX; Wi4MPI translates between Open MPI's and MPICH's families, "
                    "MPItrampoline, Mukautuva and the MPI 5 ABI do for programs built for them");
    }
    for (const auto& part : stack_.parts)
      if (part.is_library() && part.identity.abi != install_->identity.abi)
        out_.warnings.push_back("the image has " + describe(part.identity) + " (" + part.path +
                                ") too: programs that use it run on it, but on those of the host's "
                                "libraries that the host's MPI needs (UCX, hwloc); name the "
                                "program that is to be swapped");
    stack_.keep(install_->identity.abi);
    out_.mpi = side_of(install_->identity, install_->library.soname, install_->library.path);
    const auto elf = host_.world().facts(install_->library.path);
    if (!elf) return refuse(elf.error().message());
    if (elf->elf.machine != inside_.loader().machine ||
        elf->elf.elf_class != inside_.loader().elf_class)
      return refuse(program + " is for another CPU than the host's " + install_->library.path);
    return {};
  }

  /// The host's binding that replaces the container's; null: none.
  const MpiFile* host_binding(const StackPart& part) const {
    if (part.is_library()) return nullptr;
    for (const auto& binding : install_->bindings)
      for (const auto& alias : mpi_aliases(binding.soname, install_->identity.abi))
        if (holds(part.names, alias)) return &binding;
    return nullptr;
  }

  /// Symbols, each with the path of its user, that the container's programs and libraries need from
  /// the container's MPI (undefined MPI_* ones, and others that it exports) and the host's library
  /// and its bindings do not export. Weak ones do not count.
  std::vector<std::pair<std::string, std::string>> missing_symbols() {
    std::set<std::string> names(stack_.missing.begin(), stack_.missing.end());
    std::set<std::string> container_has;
    for (const auto& part : stack_.parts) {
      if (!part.is_own) continue;
      names.insert(part.names.begin(), part.names.end());
      const auto& exported = inside_.symbols().exports(part.path);
      container_has.insert(exported.begin(), exported.end());
    }
    auto host_has = host_.symbols().exports(install_->library.path);
    for (const auto& binding : install_->bindings) {
      const auto& exported = host_.symbols().exports(binding.path);
      host_has.insert(exported.begin(), exported.end());
    }
    std::vector<std::pair<std::string, std::string>> out;
    for (const auto* object : inside_.objects()) {
      if (stack_.part_of(object->file.stamp.id) != nullptr) continue;
      const auto is_one = [&](const std::string& name) { return names.contains(name); };
      if (std::ranges::none_of(object->file.elf.dependencies, is_one, &Dependency::name)) continue;
      const auto* facts = inside_.symbols().of(object->path);
      if (facts == nullptr) continue;
      for (const auto& symbol : facts->undefined_symbols)
        if (!symbol.weak && !host_has.contains(symbol.name) &&
            (is_mpi_symbol(symbol.name) || is_handle(symbol.name) ||
             container_has.contains(symbol.name)))
          out.emplace_back(object->path, symbol.name);
    }
    if (out.empty()) return out;
    // Not mpi_* of the program's own libraries, nor libc's memcpy, which some MPI exports too.
    for (const auto* object : inside_.objects()) {
      if (stack_.part_of(object->file.stamp.id) != nullptr) continue;
      const auto& exported = inside_.symbols().exports(object->path);
      std::erase_if(out, [&](const auto& one) { return exported.contains(one.second); });
    }
    return out;
  }

  /// MPI_* functions of the container's library that the host's does not export, shortened.
  std::string lost_functions(const std::string& container_file) {
    std::vector<std::string> out;
    const auto& host_has = host_.symbols().exports(install_->library.path);
    for (const auto& name : inside_.symbols().exports(container_file))
      if (name.starts_with("MPI_") && !host_has.contains(name)) out.push_back(name);
    return shortened(out);
  }

  /// Whether the programs can run with the host's MPI.
  Result<void> check_abi() {
    const auto host_name = describe(install_->identity);
    // Bindings that a program loads must be replaced together with the library.
    for (const auto& part : stack_.parts) {
      if (!part.is_own || part.is_library() || host_binding(part) != nullptr) continue;
      if (std::ranges::any_of(inside_.objects(), [&](const LoadedObject* object) {
            return object->file.stamp.id == part.id;
          }))
        return refuse(inside_.programs()[0].path + " needs " + part.soname +
                          " of the container's " +
                          (library_ ? describe(library_->identity) : "MPI") + ": the host's " +
                          host_name + " (" + install_->library.path + ") has no such bindings",
                      "install the host's Fortran or C++ bindings beside its libmpi; Open MPI 5 "
                      "has none for C++");
      out_.warnings.push_back(part.path + ": the host's " + host_name +
                              " has no such bindings: a program that loads it mixes both");
    }
    if (const auto missing = missing_symbols(); !missing.empty()) {
      std::vector<std::string> names;
      for (const auto& [user, symbol] : missing) names.push_back(symbol);
      const bool host_is_newer = library_ &&
                                 library_->identity.family == install_->identity.family &&
                                 is_older(library_->identity.version, install_->identity.version);
      return refuse(missing[0].first + " needs " + shortened(names) + ", which the host's " +
                        host_name + " (" + install_->library.path + ") does not export" +
                        (library_ ? "; the container's is " + describe(library_->identity) : ""),
                    host_is_newer
                        ? "newer versions no longer have it: use an older MPI on the host, or an "
                          "image built with a newer one"
                        : "use a newer MPI on the host, or an image built with an older one");
    }
    // The copies' users are unknown: a copy with more symbols than the host's is not replaced.
    stack_.note_swapped_directories(inside_.world());
    for (const auto& part : stack_.parts)
      if (const auto why = part.is_copy ? losses_with_host(part) : ""; !why.empty())
        stack_.preserve(part, part.path + ": " + why);
    if (!library_) return {};
    const auto& theirs = library_->identity;
    if (theirs.family == install_->identity.family &&
        is_older(install_->identity.version, theirs.version))
      out_.warnings.push_back("the host's " + host_name + " is older than the container's " +
                              describe(theirs));
    const auto lost = lost_functions(library_->path);
    if (!lost.empty() && !stack_.needed_by_program)
      out_.warnings.push_back("the host's " + host_name + " lacks " + lost +
                              " of the container's: "
                              "a program that calls one of them will abort");
    return {};
  }

  /// What users of `part` might miss in the host's; empty: nothing.
  std::string losses_with_host(const StackPart& part) {
    const auto host_name = "the host's " + describe(install_->identity);
    if (!part.is_library())
      return host_binding(part) != nullptr ? "" : host_name + " has no such bindings";
    const auto lost = lost_functions(part.path);
    return lost.empty() ? "" : host_name + " lacks " + lost;
  }

  Result<void> take_host_libraries() {
    const auto add = [&](const MpiInstall& install, const std::string& part) -> Result<void> {
      TRY(host_.add(install.library.path, part));
      directories_.insert(directories_.end(), install.plugin_directories.begin(),
                          install.plugin_directories.end());
      return {};
    };
    if (install_ != nullptr) {
      TRY(add(*install_, describe(install_->identity)));
      for (const auto& binding : install_->bindings) {
        const auto is_it = [&](const StackPart& part) { return host_binding(part) == &binding; };
        const auto is_missing = [&](const auto& name) { return holds(stack_.missing, name); };
        if (std::ranges::any_of(stack_.parts, is_it) ||
            std::ranges::any_of(mpi_aliases(binding.soname, install_->identity.abi), is_missing))
          TRY(host_.add(binding.path, "bindings"));
      }
    }
    for (const auto& root : options_.roots) TRY(add(root, "asked for"));
    if (!host_.missing().empty())
      return refuse("the host's MPI is incomplete: " + host_.missing(),
                    "ldd " + (out_.mpi ? out_.mpi->path : std::string("its library")));
    return {};
  }

  /// Takes the library and its bindings from the host.
  void force_mpi(SideChoice& sides) {
    const auto why = "the host's " + describe(install_->identity) + " was requested";
    const auto& abi = install_->identity.abi;
    auto names = install_->aliases;
    for (const auto& part : stack_.parts)
      if (part.identity.abi == abi) names.insert(names.end(), part.names.begin(), part.names.end());
    for (const auto& name : stack_.missing)
      if (stands_for(install_->aliases, abi, name)) names.push_back(name);
    sides.force(install_->library.soname, names, why);
    for (const auto& binding : install_->bindings) {
      if (!host_.files().contains(binding.soname)) continue;
      auto asked_for = mpi_aliases(binding.soname, abi);
      for (const auto& part : stack_.parts)
        if (host_binding(part) == &binding)
          asked_for.insert(asked_for.end(), part.names.begin(), part.names.end());
      sides.force(binding.soname, asked_for, why);
    }
  }

  const DecideOptions& options_;
  Decision out_;
  bool ended_ = false;  ///< with an outcome
  ContainerSide inside_;
  HostSide host_;
  SearchOptions search_;
  GlibcFamily glibc_;
  ContainerStack stack_;
  const MpiInstall* install_ = nullptr;  ///< the host's MPI that replaces the container's
  /// The container's; none: the image lacks the library that a program needs.
  std::optional<StackPart> library_;
  std::vector<PluginDirectory> directories_;
};

}  // namespace

Result<Decision> decide(OsWorld& host, OsWorld& inside, const DecideOptions& options) {
  return Decider(host, inside, options).run();
}

}  // namespace heddle::policy
