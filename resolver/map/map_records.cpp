// SPDX-License-Identifier: MIT
#include "resolver/map/codec.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/databases.hpp"

namespace heddle::map_format {

// A field list serves Encoder (record const) and Decoder. They are found by argument-dependent
// lookup through the coder's namespace.
template <class Coder>
void stamp_fields(Coder& coder, auto& stamp) {
  coder(stamp.id.dev, stamp.id.ino, stamp.size, stamp.mtime_ns, stamp.ctime_ns);
}

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapObject>
void fields(Coder& coder, T& o) {
  coder(o.path);
  stamp_fields(coder, o.stamp);
  coder(o.mode, o.hash, o.is_elf, o.soname, o.needed, o.rpath, o.runpath, o.version_definitions,
        o.version_needs, o.flags, o.flags_1, o.tls_size, o.tls_align, o.imports_dladdr,
        o.imports_dlopen);
}

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapLibrary>
void fields(Coder& coder, T& l) { coder(l.object, l.requested_as, l.found_by, l.needed_by); }

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, MapProgram>
void fields(Coder& coder, T& p) {
  coder(p.path, p.object, p.view, p.interpreter, p.library_path, p.guided, p.static_tls_bytes,
        p.probes_unguided, p.libraries, p.missing);
}

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, Meta>
void fields(Coder& coder, T& m) { coder(m.version, m.host, m.objects, m.views, m.programs); }

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, NamedObject>
void fields(Coder& coder, T& n) { coder(n.text, n.object); }

namespace {

template <class T>
std::string encode_record(const T& record) {
  Encoder coder;
  coder(record);
  return coder.take();
}

template <class T>
bool decode_record(std::string_view bytes, T& record) {
  Decoder coder(bytes);
  coder(record);
  return coder.complete();
}

}  // namespace

std::string encode(const Meta& meta) { return encode_record(meta); }
std::string encode(const MapObject& object) { return encode_record(object); }
std::string encode(const MapProgram& program) { return encode_record(program); }
std::string encode(const std::vector<NamedObject>& entries) { return encode_record(entries); }
bool decode(std::string_view bytes, Meta& meta) { return decode_record(bytes, meta); }
bool decode(std::string_view bytes, MapObject& object) { return decode_record(bytes, object); }
bool decode(std::string_view bytes, MapProgram& program) { return decode_record(bytes, program); }
bool decode(std::string_view bytes, std::vector<NamedObject>& entries) {
  return decode_record(bytes, entries);
}

std::string encode_trailer(const Trailer& trailer) {
  Encoder coder;
  coder(trailer.version, std::uint32_t{0}, trailer.length, trailer.hash);
  return std::string(kMapMagic) + coder.take();
}

std::optional<Trailer> decode_trailer(std::string_view bytes) {
  if (bytes.size() != kTrailerSize || bytes.substr(0, kMapMagic.size()) != kMapMagic) return {};
  Trailer trailer;
  std::uint32_t reserved = 0;
  Decoder coder(bytes.substr(kMapMagic.size()));
  coder(trailer.version, reserved, trailer.length, trailer.hash);
  return trailer;
}

std::string number_key(std::uint32_t number) {
  std::string key;
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(number >> shift);
  return key;
}

std::optional<std::uint32_t> number_of_key(std::string_view key) {
  if (key.size() != 4) return {};
  std::uint32_t number = 0;
  for (const char byte : key) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

std::string text_key(std::string_view prefix, std::string_view text) {
  std::string key(prefix);
  if (prefix.size() + text.size() <= store::kMaxKey) return key.append(text);
  const Checksum hash = checksum_of(text);
  key += '\0';
  return key.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
}

bool is_hashed_key(std::string_view prefix, std::string_view key) {
  return key.size() > prefix.size() && key[prefix.size()] == '\0';
}

}  // namespace heddle::map_format
