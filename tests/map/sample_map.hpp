// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string>

#include "resolver/map/map_content.hpp"

namespace heddle {

/// A map of `count` libraries (at least 2), one view and one program, every field of use.
inline MapContent sample_map(unsigned count) {
  MapContent map;
  map.host = "node1";
  MapView view{"main", {}};
  MapProgram program{.path = "/opt/app/bin/app",
                     .object = 0,
                     .view = 0,
                     .interpreter = "/lib64/ld-linux-x86-64.so.2",
                     .library_path = "/opt/app/lib000001:/opt/x",
                     .static_tls_bytes = 8416,
                     .probes_unguided = count * std::uint64_t{count} / 2,
                     .missing = {"libgone.so.1"}};
  for (unsigned i = 0; i < count; ++i) {
    std::string number = std::to_string(i);
    number.insert(0, 6 - number.size(), '0');
    MapObject object;
    object.path = "/opt/app/lib" + number + "/libfarm" + number + ".so.1.2.3";
    object.stamp = {{2049, 1000 + i}, 16384 + i, 1700000000000000000 + i, -5};
    object.mode = 0100755;
    object.hash = hash_bytes(object.path);
    object.is_elf = i % 7 != 6;
    object.soname = "libfarm" + number + ".so.1";
    for (unsigned need = i / 2; need < i; need += i / 6 + 1)
      object.needed.push_back("libfarm" + std::to_string(need) + ".so.1");
    object.rpath = i % 2 ? "$ORIGIN:/opt/app/lib" : "";
    object.runpath = i % 3 ? "" : "/opt/app/lib64";
    object.version_definitions = {"FARM_1.0", "FARM_1.1"};
    object.version_needs = {"libc.so.6:GLIBC_2.34"};
    object.flags = 0x10;
    object.flags_1 = 0x8000001;
    object.tls_size = i * 8;
    object.tls_align = 64;
    object.imports_dladdr = i % 2;
    object.imports_dlopen = i % 3 == 0;
    view.names.emplace_back(object.soname, i);
    view.names.emplace_back(object.soname + ".2.3", i);
    map.paths.emplace_back(object.path, i);
    program.guided.emplace_back(object.soname, i);
    program.guided.emplace_back(object.path, i);
    program.libraries.push_back({i, object.soname, "rpath", "/opt/app/bin/app"});
    map.objects.push_back(std::move(object));
  }
  std::sort(view.names.begin(), view.names.end());
  std::sort(program.guided.begin(), program.guided.end());
  map.views.push_back(std::move(view));
  map.programs.push_back(std::move(program));
  return map;
}

inline auto tie(const MapObject& o) {
  return std::tie(o.path, o.stamp, o.mode, o.hash, o.is_elf, o.soname, o.needed, o.rpath, o.runpath,
                  o.version_definitions, o.version_needs, o.flags, o.flags_1, o.tls_size,
                  o.tls_align, o.imports_dladdr, o.imports_dlopen);
}
inline auto tie(const MapView& v) { return std::tie(v.name, v.names); }
inline auto tie(const MapLibrary& l) {
  return std::tie(l.object, l.requested_as, l.found_by, l.needed_by);
}
inline bool same(const auto& a, const auto& b) { return tie(a) == tie(b); }
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return tie(x) == tie(y); });
}
inline bool same(const MapProgram& a, const MapProgram& b) {
  return std::tie(a.path, a.object, a.view, a.interpreter, a.library_path, a.guided,
                  a.static_tls_bytes, a.probes_unguided, a.missing) ==
             std::tie(b.path, b.object, b.view, b.interpreter, b.library_path, b.guided,
                      b.static_tls_bytes, b.probes_unguided, b.missing) &&
         same(a.libraries, b.libraries);
}
inline bool same(const MapContent& a, const MapContent& b) {
  return a.host == b.host && same(a.objects, b.objects) && same(a.views, b.views) &&
         a.paths == b.paths &&
         std::equal(a.programs.begin(), a.programs.end(), b.programs.begin(), b.programs.end(),
                    [](const MapProgram& x, const MapProgram& y) { return same(x, y); });
}

}  // namespace heddle
