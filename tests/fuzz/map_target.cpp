// SPDX-License-Identifier: MIT
//
// The map in three depths, by the first byte: any file; a file that LMDB finds sound, with records
// of any content and a right checksum; one record. What is accepted must make a tree and an index.
#include <fcntl.h>
#include <unistd.h>

#include "base/content_hash.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/overlay/tree.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/map_writer.hpp"
#include "resolver/store/store.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::fuzz {
namespace {

constexpr const char* kDatabases[] = {
    map_format::kMetaDb,  map_format::kViewsDb,    map_format::kNamesDb,    map_format::kObjectsDb,
    map_format::kPathsDb, map_format::kProgramsDb, map_format::kGeneratedDb};

const std::string& folder() {
  static const TempDir dir = value_or_throw(TempDir::create("heddle-fuzz"));
  return dir.path();
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
  (void)reader->lookup("main", "libfarm000001.so.1");
  (void)reader->lookup("", "x");
  (void)reader->lookup_path("/opt/app/lib000001/libfarm000001.so.1.2.3");
  if (const auto content = reader->read_all()) use(*content);
}

/// (database, key, value) again and again.
bool write_records(Input& input, const std::string& path) {
  (void)::unlink(path.c_str());
  store::EnvOptions options;
  options.locking = store::Locking::none;
  options.durability = store::Durability::unsynced;
  options.map_size = std::size_t{1} << 24;
  auto env = value_or_throw(store::Env::open(path, options));
  auto txn = value_or_throw(env.begin_write());
  std::vector<store::Dbi> handles;
  for (const char* name : kDatabases) handles.push_back(value_or_throw(txn.create(name)));
  while (!input.empty()) {
    const auto& dbi = handles[input.number<std::uint8_t>() % handles.size()];
    const auto key = input.text();
    const auto value = input.text();
    if (!key.empty() && key.size() <= store::kMaxKey && !txn.put(dbi, key, value)) return false;
  }
  return txn.commit().has_value();
}

void append_trailer(const std::string& path) {
  const std::string pages = value_or_throw(read_file(path));
  map_format::Trailer trailer;
  trailer.length = pages.size();
  const std::string all =
      pages + map_format::encode_trailer(trailer).substr(0, map_format::kTrailerHashed);
  trailer.hash = hash_bytes(all);
  const auto file = value_or_throw(open_file(path, O_WRONLY | O_APPEND));
  value_or_throw(write_all(file.get(), map_format::encode_trailer(trailer), path));
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
  const auto env = value_or_throw(store::Env::open(
      path, {.access = store::Access::read_only, .locking = store::Locking::none}));
  auto txn = value_or_throw(env.begin_read());
  std::string out;
  char number = 0;
  for (const char* name : kDatabases) {
    const auto dbi = value_or_throw(txn.open(name));
    auto cursor = value_or_throw(txn.cursor(*dbi));
    for (auto entry = value_or_throw(cursor.first()); entry; entry = value_or_throw(cursor.next()))
      out += number + text_piece(entry->first) + text_piece(entry->second);
    ++number;
  }
  return out;
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  switch (input.number<std::uint8_t>() % 4) {
    case 0:
      read(BytesFile(input.rest()).path());
      break;
    case 1: {
      const std::string path = folder() + "/map";
      if (!write_records(input, path)) break;
      append_trailer(path);
      read(path);
      break;
    }
    default: {
      const auto record = input.rest();
      decode_one<map_format::Meta>(record);
      decode_one<MapObject>(record);
      decode_one<MapProgram>(record);
      decode_one<std::vector<map_format::NamedObject>>(record);
    }
  }
}

std::vector<std::string> seeds() {
  const auto sample = sample_map(3);
  const std::string path = folder() + "/seed";
  value_or_throw(write_map(sample, path));
  return {'\0' + value_or_throw(read_file(path)),
          '\1' + records_of(path),
          '\2' + map_format::encode(sample.objects[0]),
          '\2' + map_format::encode(sample.programs[0]),
          '\2' + map_format::encode({map_format::NamedObject{"name", 1}}),
          '\2' + map_format::encode(map_format::Meta{})};
}

}  // namespace heddle::fuzz
