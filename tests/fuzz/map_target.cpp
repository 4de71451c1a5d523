// SPDX-License-Identifier: MIT
//
// The map at five depths, selected by the first byte: any file; changed pages with a correct
// checksum; valid pages with any records; one record; the bytes of a directory tree. An accepted
// map must give a tree and an index; in a directory tree each entry must be found by its path.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/content_hash.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/overlay/tree.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "resolver/store/databases.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::fuzz {
namespace {

constexpr const char* kDatabases[] = {
    map_format::kMetaDb,  map_format::kViewsDb,    map_format::kNamesDb,     map_format::kObjectsDb,
    map_format::kPathsDb, map_format::kProgramsDb, map_format::kGeneratedDb, map_format::kTreesDb};

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

/// A daemon makes a tree and an index of a map.
void use(const MapContent& content) {
  (void)Tree::build(content);
  IndexInput input{content, "/m", {}, std::vector<bool>(content.objects.size())};
  for (const auto& program : content.programs) {
    check(program.object < content.objects.size(), "a program of no object was accepted");
    input.programs.push_back(content.objects[program.object].stamp);
  }
  (void)make_index(input);
}

void use_tree(std::string_view bytes) {
  const auto tree = TreeIndex::of(bytes);
  if (!tree) return;
  for (TreeNodeId id = 0; id < tree->size(); ++id) {
    const auto path = tree->path(id);
    check(tree->find_path(path) == id, "an entry is not found by its path");
    const auto node = tree->node(id);
    check(tree->node(node.same_as).mode == node.mode, "a link to another kind of file");
  }
}

void read(std::string_view map) {
  const auto reader = MapReader::open(BytesFile(map).path());
  if (!reader) return;
  if (const auto content = reader->read_all()) use(*content);
}

/// LMDB's pages of a sequence of (database, key, value), as far as LMDB accepts them.
Result<std::string> pages_of_records(Input& input) {
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
  return store::write_databases(databases);
}

/// The pages of a sample map, changed by a sequence of (place, value).
std::string changed_pages(Input& input) {
  auto pages = sample_pages();
  while (!input.empty()) {
    // LMDB's numbers are at even places.
    const auto at = input.number<std::uint32_t>() % pages.size() & ~std::size_t{1};
    const auto value = input.number<std::uint16_t>();
    std::memcpy(pages.data() + at, &value, std::min(sizeof(value), pages.size() - at));
  }
  return pages;
}

template <class Record>
void decode_one(std::string_view bytes) {
  Record record;
  if (!map_format::decode(bytes, record)) return;
  const std::string again = map_format::encode(record);
  Record second;
  check(map_format::decode(again, second) && map_format::encode(second) == again,
        "a record does not round-trip");
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
  switch (input.number<std::uint8_t>() % 6) {
    case 0:
      read(input.rest());
      break;
    case 1:
      if (const auto pages = pages_of_records(input)) read(map_format::with_trailer(*pages));
      break;
    case 4:
      read(map_format::with_trailer(changed_pages(input)));
      break;
    case 5:
      use_tree(input.rest());
      break;
    default: {
      const auto record = input.rest();
      decode_one<map_format::Meta>(record);
      decode_one<MapObject>(record);
      decode_one<MapProgram>(record);
      decode_one<MapTree>(record);
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
          '\2' + map_format::encode(map_format::Meta{}),
          '\5' + sample_tree()};
}

}  // namespace heddle::fuzz
