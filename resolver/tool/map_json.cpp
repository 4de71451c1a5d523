// SPDX-License-Identifier: MIT
#include "resolver/tool/map_json.hpp"

#include <fmt/format.h>

#include "base/escape.hpp"

namespace heddle {
namespace {

void escape_strings(Json& value) {
  if (value.is_string())
    value = to_json_text(value.get_ref<const std::string&>());
  else if (value.is_structured())
    for (auto& item : value) escape_strings(item);
}

Json to_json(const MapProgram& program, const MapContent& content) {
  Json libraries = Json::array();
  for (const auto& library : program.libraries) {
    const MapObject& object = content.objects[library.object];
    libraries.push_back(library_json(object.soname, object.path, library.found_by,
                                     library.needed_by, library.requested_as));
  }
  return {{"path", program.path},
          {"interpreter", program.interpreter},
          {"view", content.views[program.view].name},
          {"ld_library_path", program.library_path},
          {"failed_probes_unguided", program.probes_unguided},
          {"static_tls_bytes", program.static_tls_bytes},
          {"libraries", std::move(libraries)},
          {"missing", program.missing}};
}

Json to_json(const MapView& view, const MapContent& content) {
  Json names = Json::object();
  for (const auto& [name, id] : view.names) names[to_json_text(name)] = content.objects[id].path;
  return {{"name", view.name}, {"names", std::move(names)}};
}

}  // namespace

std::string to_text(Json value) {
  escape_strings(value);
  return value.dump(2) + "\n";
}

void print_json(Json value) { fmt::print("{}", to_text(std::move(value))); }

Json library_json(const std::string& soname, const std::string& path, const std::string& found_by,
                  const std::string& needed_by, const std::string& requested_as) {
  return {{"soname", soname},
          {"path", path},
          {"found_by", found_by},
          {"needed_by", needed_by.empty() ? Json() : Json(needed_by)},
          {"requested_as", requested_as}};
}

Json library_json(const Closure& closure, std::size_t index) {
  const LoadedObject& object = closure.objects[index];
  return library_json(object.file.elf.soname.value_or(""), object.path, to_string(object.found_by),
                      object.needed_by ? closure.objects[*object.needed_by].path : "",
                      object.requested_as);
}

Json to_json(const MapObject& object) {
  Json out = {{"path", object.path},
              {"size", object.stamp.size},
              {"mtime_ns", object.stamp.mtime_ns},
              {"sha256", object.hash.hex()}};
  if (!object.is_elf) {
    out["kind"] = "data";
    return out;
  }
  out["soname"] = object.soname;
  out["needed"] = object.needed;
  if (!object.rpath.empty()) out["rpath"] = object.rpath;
  if (!object.runpath.empty()) out["runpath"] = object.runpath;
  out["version_definitions"] = object.version_definitions;
  out["version_needs"] = object.version_needs;
  out["flags"] = object.flags;
  out["flags_1"] = object.flags_1;
  if (object.tls_size) out["tls"] = {{"size", object.tls_size}, {"align", object.tls_align}};
  out["imports_dladdr"] = object.imports_dladdr;
  out["imports_dlopen"] = object.imports_dlopen;
  return out;
}

Json to_json(const MapContent& content) {
  Json out = {{"format", "heddle-map"},
              {"programs", Json::array()},
              {"views", Json::array()},
              {"objects", Json::array()}};
  for (const auto& one : content.programs) out["programs"].push_back(to_json(one, content));
  for (const auto& one : content.views) out["views"].push_back(to_json(one, content));
  for (const auto& one : content.objects) out["objects"].push_back(to_json(one));
  return out;
}

}  // namespace heddle
