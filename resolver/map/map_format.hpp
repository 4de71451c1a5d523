// SPDX-License-Identifier: MIT
#pragma once

// The map file: LMDB's pages, then the trailer (docs/formats/map.md). Any change here requires a
// new kMapVersion.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/coder.hpp"
#include "base/content_hash.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/store/databases.hpp"

namespace heddle {

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapObject>
void fields(Coder& coder, T& o) {
  coder(o.path, o.stamp.id.dev, o.stamp.id.ino, o.stamp.size, o.stamp.mtime_ns, o.stamp.ctime_ns,
        o.mode, o.hash.bytes, o.is_elf, o.soname, o.needed, o.rpath, o.runpath,
        o.version_definitions, o.version_needs, o.flags, o.flags_1, o.tls_size, o.tls_align,
        o.imports_dladdr, o.imports_dlopen);
}

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapLibrary>
void fields(Coder& coder, T& l) { coder(l.object, l.requested_as, l.found_by, l.needed_by); }

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapProgram>
void fields(Coder& coder, T& p) {
  coder(p.path, p.object, p.view, p.interpreter, p.library_path, p.hwcaps_tunable, p.guided,
        p.static_tls_bytes, p.probes_unguided, p.libraries, p.missing);
}

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapTree>
void fields(Coder& coder, T& t) { coder(t.path, t.index); }

}  // namespace heddle

namespace heddle::map_format {

inline constexpr std::string_view kMapMagic = "HEDDLMAP";
inline constexpr std::uint32_t kMapVersion = 8;

inline constexpr const char* kMetaDb = "meta";
inline constexpr const char* kViewsDb = "views";
inline constexpr const char* kNamesDb = "names";
inline constexpr const char* kObjectsDb = "objects";
inline constexpr const char* kPathsDb = "paths";
inline constexpr const char* kProgramsDb = "programs";
inline constexpr const char* kGeneratedDb = "generated";
inline constexpr const char* kTreesDb = "trees";

/// The file's last bytes: magic, u32 version, u32 0, u64 length of the pages before it, and the
/// XXH3-128 of all bytes before that hash.
inline constexpr std::size_t kTrailerSize = 40;
std::string with_trailer(std::string pages);
inline constexpr std::size_t kMaxMap = std::size_t{256} << 20;  ///< 100,000 libraries take 60 MiB

/// Key of the n-th record: big-endian, so that LMDB's order is the number's.
std::string number_key(std::uint32_t number);
std::optional<std::uint32_t> number_of_key(std::string_view key);

/// Keys of names are the view's number_key() and the name, keys of paths the path. A longer name is
/// refused, a longer path left out.
inline constexpr std::size_t kMaxText = store::kMaxKey - sizeof(std::uint32_t);

struct Meta {
  std::uint32_t version = kMapVersion;
  std::string host;
  std::uint32_t objects = 0;
  std::uint32_t views = 0;
  std::uint32_t programs = 0;
  std::uint32_t trees = 0;
};

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, Meta>
void fields(Coder& coder, T& m) {
  coder(m.version, m.host, m.objects, m.views, m.programs, m.trees);
}

template <class Record>
std::string encode(const Record& record) {
  Encoder coder;
  coder(record);
  return coder.take();
}

/// False: the bytes are not such a record.
template <class Record>
bool decode(std::string_view bytes, Record& record) {
  Decoder coder(bytes);
  coder(record);
  return coder.complete();
}

/// Failure: the rule of map_content.hpp that `content` breaks, and where.
Result<void> check_rules(const MapContent& content);

}  // namespace heddle::map_format
