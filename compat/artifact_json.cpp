// SPDX-License-Identifier: MIT
#include "compat/artifact_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "compat/artifact_text.hpp"

namespace heddle::compat {
namespace {

using Json = nlohmann::ordered_json;

/// compat-lib's own version of its format (pkg/compat/types.go): its readers look for it.
constexpr const char* kCompatLibVersion = "0.0.1";

/// JSON carries UTF-8 only; bytes that are none go escaped into an object, so that both read back.
Json text_json(const std::string& text) {
  if (is_valid_utf8(text)) return text;
  return {{"escaped", escape_for_terminal(text)}};
}

Json dependencies_json(const ElfFacts& elf) {
  Json out = Json::array();
  for (const auto& dependency : elf.dependencies)
    out.push_back(
        {{"kind", dependency_kind_name(dependency.kind)}, {"name", text_json(dependency.name)}});
  return out;
}

Json versions_json(const ElfFacts& elf) {
  Json out = Json::array();
  for (const auto& need : elf.version_needs) {
    Json one = {{"library", text_json(need.file)}, {"version", text_json(need.version)}};
    if (need.weak) one["weak"] = true;
    out.push_back(std::move(one));
  }
  return out;
}

/// Names by version, sorted: one line of the file for many symbols.
Json symbols_json(const std::vector<DynamicSymbol>& symbols, bool weak) {
  std::map<std::string, std::vector<std::string>> by_version;
  for (const auto& symbol : symbols)
    if (symbol.weak == weak) by_version[symbol.version].push_back(symbol.name);
  Json out = Json::array();
  for (auto& [version, names] : by_version) {
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    Json list = Json::array();
    for (const auto& name : names) list.push_back(text_json(name));
    out.push_back({{"version", text_json(version)}, {"names", std::move(list)}});
  }
  return out;
}

Json isa_json(std::uint32_t mask) {
  Json out = Json::array();
  for (unsigned bit = 0; bit < 32; ++bit)
    if ((mask >> bit & 1) != 0) out.push_back(isa_level_name(bit));
  return out;
}

Json library_json(const Library& library) {
  Json out = {{"soname", text_json(library.soname)}, {"resolved", library.resolved()}};
  if (library.resolved()) {
    out["path"] = text_json(library.path);
    if (!library.found_by.empty()) out["found_by"] = library.found_by;
  } else {
    out["reason"] = text_json(library.reason);
  }
  if (!library.needed_by.empty()) out["needed_by"] = text_json(library.needed_by);
  if (library.dlopened) out["dlopened"] = true;
  if (!library.versions.empty()) {
    Json list = Json::array();
    for (const auto& version : library.versions) list.push_back(text_json(version));
    out["versions"] = std::move(list);
  }
  if (!library.build_id.empty()) out["build_id"] = library.build_id;
  if (!library.hash.empty()) out["sha256"] = library.hash;
  return out;
}

Json program_json(const Program& program) {
  const auto& elf = program.elf;
  Json out = {{"name", text_json(program.name)},
              {"path", text_json(program.path)},
              {"machine", machine_name(elf.machine)},
              {"elf",
               {{"class", elf.elf_class},
                {"data", elf.data_encoding},
                {"os_abi", elf.os_abi},
                {"abi_version", elf.abi_version},
                {"type", elf.type},
                {"machine", elf.machine},
                {"dynamic", elf.dynamic},
                {"flags", elf.flags},
                {"flags_1", elf.flags_1}}}};
  if (elf.interp) out["interpreter"] = text_json(*elf.interp);
  if (!program.interpreter_soname.empty())
    out["interpreter_soname"] = text_json(program.interpreter_soname);
  if (elf.soname) out["soname"] = text_json(*elf.soname);
  if (!elf.build_id.empty()) out["build_id"] = elf.build_id;
  out["sha256"] = program.hash;
  if (elf.rpath) out["rpath"] = text_json(*elf.rpath);
  if (elf.runpath) out["runpath"] = text_json(*elf.runpath);
  if (elf.tls) out["tls"] = {{"size", elf.tls->size}, {"align", elf.tls->align}};
  if (program.notes.isa_needed != 0) out["isa_needed"] = isa_json(program.notes.isa_needed);
  if (program.notes.isa_used != 0) out["isa_used"] = isa_json(program.notes.isa_used);
  if (!program.notes.kernel.empty()) out["kernel"] = program.notes.kernel;
  if (!program.mpi_family.empty())
    out["mpi"] = {{"family", program.mpi_family}, {"soname", text_json(program.mpi_soname)}};
  if (elf.imports_dlopen) out["imports_dlopen"] = true;
  if (elf.imports_dladdr) out["imports_dladdr"] = true;
  out["needed"] = dependencies_json(elf);
  out["versions"] = versions_json(elf);
  Json libraries = Json::array();
  for (const auto& library : program.libraries) libraries.push_back(library_json(library));
  out["libraries"] = std::move(libraries);
  out["symbols"] = {{"required", symbols_json(elf.undefined_symbols, false)},
                    {"weak", symbols_json(elf.undefined_symbols, true)},
                    {"defined", symbols_json(elf.exported_symbols, false)},
                    {"defined_weak", symbols_json(elf.exported_symbols, true)}};
  if (!elf.version_definitions.empty()) {
    Json list = Json::array();
    for (const auto& name : elf.version_definitions) list.push_back(text_json(name));
    out["version_definitions"] = std::move(list);
  }
  return out;
}

}  // namespace

std::string to_json(const Artifact& artifact) {
  Json attributes = Json::object();
  Json programs = Json::array();
  std::vector<std::string> names;
  for (const auto& program : artifact.programs) {
    programs.push_back(program_json(program));
    for (const auto& library : program.libraries)
      if (!library.dlopened && std::find(names.begin(), names.end(), library.soname) == names.end())
        names.push_back(library.soname);
  }
  if (!artifact.programs.empty())
    attributes["llnl.compatlib.executable-name"] = to_json_text(artifact.programs[0].name);
  for (std::size_t i = 0; i < names.size(); ++i)
    attributes[fmt::format("llnl.compatlib.library-name.{}", i)] = to_json_text(names[i]);
  const Json all = {{"version", kCompatLibVersion},
                    {"attributes", std::move(attributes)},
                    {"heddle", {{"format", kArtifactFormat}, {"programs", std::move(programs)}}}};
  return all.dump(2) + "\n";
}

}  // namespace heddle::compat
