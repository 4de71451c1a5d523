// SPDX-License-Identifier: MIT
#include "compat/map_target.hpp"

#include <elf.h>
#include <sys/utsname.h>

#include <algorithm>

#include "base/open_regular.hpp"
#include "compat/node_target.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/search/cpu_levels.hpp"

namespace heddle::compat {
namespace {

/// What the closure asks of an object, back from the map's form of it.
LoadedObject loaded(const MapObject& object) {
  LoadedObject out;
  out.path = object.path;
  out.file.stamp = object.stamp;
  out.file.hash = object.hash;
  out.found_by = FoundBy::path;
  auto& elf = out.file.elf;
  if (!object.soname.empty()) elf.soname = object.soname;
  for (const auto& name : object.needed)
    elf.dependencies.push_back({Dependency::Kind::needed, name});
  elf.version_definitions = object.version_definitions;
  for (const auto& need : object.version_needs) {
    const auto colon = need.rfind(':');
    if (colon != need.npos)
      elf.version_needs.push_back({need.substr(0, colon), need.substr(colon + 1), false});
  }
  return out;
}

}  // namespace

MapTarget::MapTarget(FactsSource& source, MapContent content)
    : source_(&source), content_(std::move(content)) {
  for (ObjectId id = 0; id < content_.objects.size(); ++id)
    by_path_.emplace(content_.objects[id].path, id);
}

Result<MapTarget> MapTarget::open(FactsSource& source, const std::string& path) {
  const auto reader = MapReader::open(path);
  if (!reader) return fail(reader.error());
  auto content = reader->read_all();
  if (!content) return fail(std::move(content.error()));
  return MapTarget(source, std::move(*content));
}

const MapObject* MapTarget::find(const Program& program, const std::string& name) const {
  const auto in = [&](const std::vector<std::pair<std::string, ObjectId>>& names) {
    const auto at =
        std::lower_bound(names.begin(), names.end(), name,
                         [](const auto& one, const auto& key) { return one.first < key; });
    return at != names.end() && at->first == name ? &content_.objects[at->second] : nullptr;
  };
  for (const auto& known : content_.programs)
    if (known.path == program.path) {
      if (const auto* object = in(known.guided)) return object;
      return in(content_.views[known.view].names);
    }
  for (const auto& view : content_.views)
    if (const auto* object = in(view.names)) return object;
  const auto path = by_path_.find(name);
  return path == by_path_.end() ? nullptr : &content_.objects[path->second];
}

Result<Target::Loaded> MapTarget::load(const Program& program) {
  Loaded out;
  LoadedObject main;
  main.path = program.path;
  main.file.elf.dependencies = program.elf.dependencies;
  main.file.elf.version_needs = program.elf.version_needs;
  out.closure.objects.push_back(std::move(main));
  std::unordered_map<std::string, std::size_t> seen;  // by path
  for (std::size_t i = 0; i < out.closure.objects.size(); ++i) {
    const auto dependencies = out.closure.objects[i].file.elf.dependencies;
    for (const auto& dependency : dependencies) {
      const auto* object = find(program, dependency.name);
      if (object == nullptr) {
        if (dependency.kind == Dependency::Kind::needed)
          out.closure.missing.push_back({dependency.name, i, "not found"});
        continue;
      }
      const auto [known, is_new] = seen.try_emplace(object->path, out.closure.objects.size());
      if (is_new) {
        out.closure.objects.push_back(loaded(*object));
        out.closure.objects.back().requested_as = dependency.name;
        out.closure.objects.back().needed_by = i;
      }
      out.closure.objects[known->second].names.push_back(dependency.name);
      out.closure.objects[i].needs.push_back(known->second);
    }
  }
  return out;
}

std::string MapTarget::closure_key(const Program& program) {
  std::string key;
  for (const auto& known : content_.programs)
    if (known.path == program.path) key = program.path;
  key += '\0';
  for (const auto& dependency : program.elf.dependencies) key += dependency.name + '\0';
  return key;
}

bool MapTarget::is_unchanged(const MapObject& object) const {
  const auto file = source_->facts(object.path, FactsDetail::symbols);
  return file && file->hash == object.hash;
}

std::optional<Result<ElfFacts>> MapTarget::symbols(const std::string& path) {
  const auto known = by_path_.find(path);
  if (known == by_path_.end()) return std::nullopt;
  auto file = source_->facts(path, FactsDetail::symbols);
  // Another file stands there by now, or none (the map is of another node): it says nothing.
  if (!file || file->hash != content_.objects[known->second].hash) return std::nullopt;
  return Result<ElfFacts>(std::move(file->elf));
}

void MapTarget::prefetch_symbols(const std::vector<std::string>& paths) {
  source_->prefetch(paths, FactsDetail::symbols);
}

ElfNotes MapTarget::notes(const std::string& path) {
  const auto known = by_path_.find(path);
  if (known == by_path_.end() || !is_unchanged(content_.objects[known->second])) return {};
  const auto file = open_regular(path);
  if (!file) return {};
  return read_elf_notes(file->get(), path).value_or(ElfNotes{});
}

std::string MapTarget::find_library(const Program& program, const std::string& soname) {
  const auto* object = find(program, soname);
  return object == nullptr ? std::string() : object->path;
}

bool MapTarget::has_file(const std::string& path) { return by_path_.contains(path); }
std::string MapTarget::package_of(const std::string&) { return {}; }
std::uint32_t MapTarget::isa_levels() { return read_cpu_levels().isa_levels; }

std::string MapTarget::kernel() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}

}  // namespace heddle::compat
