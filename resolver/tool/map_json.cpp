// SPDX-License-Identifier: MIT
#include "resolver/tool/map_json.hpp"

#include <fmt/format.h>

#include "base/escape.hpp"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

Json texts(const std::vector<std::string>& strings) {
  Json out = Json::array();
  for (const auto& s : strings) out.push_back(to_json_text(s));
  return out;
}

Json names(const std::vector<std::pair<std::string, ObjectId>>& entries,
           const MapContent& content) {
  Json out = Json::object();
  for (const auto& [name, id] : entries)
    out[to_json_text(name)] = to_json_text(content.objects[id].path);
  return out;
}

Json to_json(const MapProgram& program, const MapContent& content) {
  Json libraries = Json::array();
  for (const auto& library : program.libraries) {
    const MapObject& object = content.objects[library.object];
    libraries.push_back(library_json(object.soname, object.path, library.found_by,
                                     library.needed_by, library.requested_as));
  }
  return {{"path", to_json_text(program.path)},
          {"interpreter", to_json_text(program.interpreter)},
          {"view", to_json_text(content.views[program.view].name)},
          {"ld_library_path", to_json_text(program.library_path)},
          {"failed_probes_unguided", program.probes_unguided},
          {"static_tls_bytes", program.static_tls_bytes},
          {"libraries", std::move(libraries)},
          {"missing", texts(program.missing)}};
}

}  // namespace

Json library_json(const std::string& soname, const std::string& path, const std::string& found_by,
                  const std::string& needed_by, const std::string& requested_as) {
  return {{"soname", to_json_text(soname)},
          {"path", to_json_text(path)},
          {"found_by", found_by},
          {"needed_by", needed_by.empty() ? Json() : Json(to_json_text(needed_by))},
          {"requested_as", to_json_text(requested_as)}};
}

Json library_json(const Closure& closure, std::size_t index) {
  const LoadedObject& object = closure.objects[index];
  return library_json(object.file.elf.soname.value_or(""), object.path, to_string(object.found_by),
                      object.needed_by ? closure.objects[*object.needed_by].path : "",
                      object.requested_as);
}

Json to_json(const MapObject& object) {
  Json out = {{"path", to_json_text(object.path)},
              {"size", object.stamp.size},
              {"mtime_ns", object.stamp.mtime_ns},
              {"sha256", object.hash.hex()}};
  if (!object.is_elf) {
    out["kind"] = "data";
    return out;
  }
  out["soname"] = to_json_text(object.soname);
  out["needed"] = texts(object.needed);
  if (!object.rpath.empty()) out["rpath"] = to_json_text(object.rpath);
  if (!object.runpath.empty()) out["runpath"] = to_json_text(object.runpath);
  out["version_definitions"] = texts(object.version_definitions);
  out["version_needs"] = texts(object.version_needs);
  out["flags"] = object.flags;
  out["flags_1"] = object.flags_1;
  if (object.tls_size) out["tls"] = {{"size", object.tls_size}, {"align", object.tls_align}};
  out["imports_dladdr"] = object.imports_dladdr;
  out["imports_dlopen"] = object.imports_dlopen;
  return out;
}

Json to_json(const MapContent& content) {
  Json programs = Json::array();
  for (const auto& program : content.programs) programs.push_back(to_json(program, content));
  Json views = Json::array();
  for (const auto& view : content.views)
    views.push_back({{"name", to_json_text(view.name)}, {"names", names(view.names, content)}});
  Json objects = Json::array();
  for (const auto& object : content.objects) objects.push_back(to_json(object));
  return {{"format", "heddle-map"},
          {"programs", std::move(programs)},
          {"views", std::move(views)},
          {"objects", std::move(objects)}};
}

}  // namespace heddle
