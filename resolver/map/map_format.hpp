// SPDX-License-Identifier: MIT
#pragma once

// The map file: LMDB's pages, then the trailer. docs/formats/map.md describes it for others; a
// change of anything here or of map_records.cpp's field lists needs a new kMapVersion.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.hpp"
#include "base/content_hash.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle::map_format {

inline constexpr std::string_view kMapMagic = "HEDDLMAP";
inline constexpr std::uint32_t kMapVersion = 6;

inline constexpr const char* kMetaDb = "meta";
inline constexpr const char* kViewsDb = "views";
inline constexpr const char* kNamesDb = "names";
inline constexpr const char* kObjectsDb = "objects";
inline constexpr const char* kPathsDb = "paths";
inline constexpr const char* kProgramsDb = "programs";
inline constexpr const char* kGeneratedDb = "generated";

/// The file's last bytes: magic, u32 version, u32 0, u64 length of what stands before it, and the
/// XXH3-128 of all bytes before that hash.
struct Trailer {
  std::uint32_t version = kMapVersion;
  std::uint64_t length = 0;
  Checksum hash;
};
inline constexpr std::size_t kTrailerSize = 40;
inline constexpr std::size_t kTrailerHashed = kTrailerSize - 16;  ///< its part before the hash
std::string encode_trailer(const Trailer& trailer);
/// All bytes of the open file called `path`, which no reader keeps open: others may go on writing
/// to it. EFBIG: it is larger than any map.
Result<std::string> file_bytes(int file, const std::string& path);
inline constexpr std::size_t kMaxMap = std::size_t{256} << 20;  ///< 100,000 libraries take 60 MiB
/// nullopt: these are not the bytes of a trailer.
std::optional<Trailer> decode_trailer(std::string_view bytes);

/// Key of the n-th record: big-endian, so that LMDB's order is the number's.
std::string number_key(std::uint32_t number);
std::optional<std::uint32_t> number_of_key(std::string_view key);

/// Key of a name or path behind `prefix`. One too long for LMDB becomes prefix, NUL and its
/// XXH3-128; NUL is no part of any name, so the two kinds never meet.
std::string text_key(std::string_view prefix, std::string_view text);
bool is_hashed_key(std::string_view prefix, std::string_view key);

/// What stands behind a text_key. A hashed key's value holds the full text too, and all texts that
/// share the hash: entries that differ in text are told apart by comparison, never by the hash
/// alone.
struct NamedObject {
  std::string text;  ///< empty behind a key that is the text itself
  ObjectId object = 0;
};

struct Meta {
  std::uint32_t version = kMapVersion;
  std::string host;
  std::uint32_t objects = 0;
  std::uint32_t views = 0;
  std::uint32_t programs = 0;
};

std::string encode(const Meta& meta);
std::string encode(const MapObject& object);
std::string encode(const MapProgram& program);
std::string encode(const std::vector<NamedObject>& entries);
/// False: the bytes are not such a record.
bool decode(std::string_view bytes, Meta& meta);
bool decode(std::string_view bytes, MapObject& object);
bool decode(std::string_view bytes, MapProgram& program);
bool decode(std::string_view bytes, std::vector<NamedObject>& entries);

/// Empty, or which rule of map_content.hpp `content` breaks, naming the offender.
std::string broken_rule(const MapContent& content);

}  // namespace heddle::map_format
