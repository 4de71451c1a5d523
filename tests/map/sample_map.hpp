// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string>

#include "resolver/map/map_format.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle {

/// The bytes of a tree with each kind of entry.
inline std::string sample_tree() {
  using Entry = TreeIndexWriter::Entry;
  Entry link{.name = "so", .mode = 0120777, .size = 3, .target = "a.b"};
  Entry file{.name = "a.b", .mode = 0100644, .links = 2, .size = 7, .mtime_ns = 5, .dev = 1};
  Entry same = file;
  same.name = "b\n\xff";
  Entry hole{.name = "hole", .mode = 0040700, .hole = true};
  Entry lower{.name = "lower", .mode = 0040755, .children = {file, link, hole}};
  Entry root{.mode = 0040755, .children = {lower, same, Entry{.name = "none", .mode = 0040755}}};
  return value_or_throw(TreeIndexWriter::encode(root));
}

/// A map of `count` libraries (at least 2), one view and one program, with every field in use.
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
  map.trees = {{"/opt/app/python", sample_tree()}, {"/opt/x-y", sample_tree()}};
  map.views.push_back(std::move(view));
  map.programs.push_back(std::move(program));
  return map;
}

/// Whether the records are equal.
inline bool same(const MapContent& a, const MapContent& b) {
  const auto bytes_of = [](const MapContent& map) {
    Encoder coder;
    coder(map.host, map.objects, map.programs, map.paths, map.trees);
    for (const auto& view : map.views) coder(view.name, view.names);
    return coder.take();
  };
  return bytes_of(a) == bytes_of(b);
}

}  // namespace heddle
