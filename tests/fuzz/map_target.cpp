// SPDX-License-Identifier: MIT
//
// The map in four depths, by the first byte: any file; pages changed anyhow under a right checksum,
// which anybody can make; sound pages with records of any content; one record. What is accepted
// must make a tree and an index.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/content_hash.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/overlay/tree.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/store/databases.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::fuzz {
namespace {

constexpr const char* kDatabases[] = {
    map_format::kMetaDb,  map_format::kViewsDb,    map_format::kNamesDb,    map_format::kObjectsDb,
    map_format::kPathsDb, map_format::kProgramsDb, map_format::kGeneratedDb};

const std::string& directory() {
  static const TempDir dir = value_or_throw(TempDir::create("heddle-fuzz"));
  return dir.path();
}

const std::string& sample_pages() {
  static const std::string pages = [] {
    const std::string path = directory() + "/sample";
    value_or_throw(write_map(sample_map(30), path));
    auto bytes = value_or_throw(read_file(path));
    bytes.resize(bytes.size() - map_format::kTrailerSize);
    return bytes;
  }();
  return pages;
}

/// The two things that a daemon makes of a map.
void use(const MapContent& content) {
  (void)Tree::build(content);
  IndexInput input{content, "/m", {}, std::vector<bool>(content.objects.size())};
  for (const auto& program : content.programs) {
    check(program.object < content.objects.size(), "a program of no object was accepted");
    input.programs.push_back(content.objects[program.object].stamp);
  }
  (void)make_index(input);
}

void read(const std::string& path) {
  const auto reader = MapReader::open(path);
  if (!reader) return;
  if (const auto content = reader->read_all()) use(*content);
}

/// (database, key, value) again and again.
bool write_records(Input& input, const std::string& path) {
  (void)::unlink(path.c_str());
  std::map<std::string_view, std::map<std::string_view, std::string_view>> sorted;
  for (const char* name : kDatabases) sorted[name];
  while (!input.empty()) {
    auto& records = sorted[kDatabases[input.number<std::uint8_t>() % std::size(kDatabases)]];
    const auto key = input.text();
    const auto value = input.text();
    if (!key.empty() && key.size() <= store::kMaxKey) records.emplace(key, value);
  }
  store::Databases databases;
  for (const auto& [name, records] : sorted) databases[name] = {records.begin(), records.end()};
  const auto bytes = store::write_databases(databases);
  if (!bytes) return false;
  const auto file = value_or_throw(open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  return write_all(file.get(), *bytes, path).has_value();
}

/// The pages of a sample map with some of their numbers changed: (where, value) again and again.
void change_pages(Input& input, const std::string& path) {
  auto pages = sample_pages();
  while (!input.empty()) {
    // Two bytes at an even place, as all of LMDB's numbers stand.
    const auto at = input.number<std::uint32_t>() % pages.size() & ~std::size_t{1};
    const auto value = input.number<std::uint16_t>();
    std::memcpy(pages.data() + at, &value, std::min(sizeof(value), pages.size() - at));
  }
  const auto file = value_or_throw(open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  value_or_throw(write_all(file.get(), pages, path));
}

void append_trailer(const std::string& path) {
  const std::string pages = value_or_throw(read_file(path));
  const auto file = value_or_throw(open_file(path, O_WRONLY | O_TRUNC));
  value_or_throw(write_all(file.get(), map_format::with_trailer(pages), path));
}

template <class Record>
void decode_one(std::string_view bytes) {
  Record record;
  if (!map_format::decode(bytes, record)) return;
  const std::string again = map_format::encode(record);
  Record second;
  check(map_format::decode(again, second) && map_format::encode(second) == again,
        "a record does not come back as it was written");
}

std::string records_of(const std::string& path) {
  const auto file = value_or_throw(read_file(path));
  const auto databases = value_or_throw(store::read_databases(file));
  std::string out;
  char number = 0;
  for (const char* name : kDatabases) {
    for (const auto& [key, value] : databases.at(name))
      out += number + text_piece(key) + text_piece(value);
    ++number;
  }
  return out;
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  switch (input.number<std::uint8_t>() % 5) {
    case 0:
      read(BytesFile(input.rest()).path());
      break;
    case 1: {
      const std::string path = directory() + "/map";
      if (!write_records(input, path)) break;
      append_trailer(path);
      read(path);
      break;
    }
    case 4: {
      const std::string path = directory() + "/map";
      change_pages(input, path);
      append_trailer(path);
      read(path);
      break;
    }
    default: {
      const auto record = input.rest();
      decode_one<map_format::Meta>(record);
      decode_one<MapObject>(record);
      decode_one<MapProgram>(record);
    }
  }
}

std::vector<std::string> seeds() {
  const auto sample = sample_map(3);
  const std::string path = directory() + "/seed";
  value_or_throw(write_map(sample, path));
  return {'\0' + value_or_throw(read_file(path)),
          '\1' + records_of(path),
          std::string("\4\x50\x10\0\0\xff\xff", 7),
          std::string("\4\x0c\x20\0\0\x12\0\x0e\x30\0\0\0\x80", 13),
          '\2' + map_format::encode(sample.objects[0]),
          '\2' + map_format::encode(sample.programs[0]),
          '\2' + map_format::encode(map_format::Meta{})};
}

}  // namespace heddle::fuzz
