// SPDX-License-Identifier: MIT
#include "resolver/map/map_writer.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/atomic_file.hpp"
#include "base/fd.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/databases.hpp"

namespace heddle {
namespace {

using map_format::encode;
using map_format::is_hashed_key;
using map_format::NamedObject;
using map_format::number_key;
using map_format::text_key;

/// A database's content in key order.
using Records = std::vector<std::pair<std::string, std::string>>;

struct Tables {
  Records meta, views, names, objects, paths, programs, generated;
};

void add_texts(Records& records, std::string_view prefix,
               const std::vector<std::pair<std::string, ObjectId>>& texts) {
  std::map<std::string, std::vector<NamedObject>> hashed;
  for (const auto& [text, object] : texts) {
    std::string key = text_key(prefix, text);
    if (is_hashed_key(prefix, key))
      hashed[key].push_back({text, object});
    else
      records.emplace_back(std::move(key), encode({NamedObject{{}, object}}));
  }
  for (const auto& [key, entries] : hashed) records.emplace_back(key, encode(entries));
}

Tables make_tables(const MapContent& content) {
  Tables out;
  const map_format::Meta meta{map_format::kMapVersion, content.host,
                              static_cast<std::uint32_t>(content.objects.size()),
                              static_cast<std::uint32_t>(content.views.size()),
                              static_cast<std::uint32_t>(content.programs.size())};
  out.meta.emplace_back("meta", encode(meta));
  for (ObjectId id = 0; id < content.objects.size(); ++id)
    out.objects.emplace_back(number_key(id), encode(content.objects[id]));
  for (ViewId id = 0; id < content.views.size(); ++id) {
    out.views.emplace_back(number_key(id), content.views[id].name);
    add_texts(out.names, number_key(id), content.views[id].names);
  }
  for (std::uint32_t id = 0; id < content.programs.size(); ++id)
    out.programs.emplace_back(number_key(id), encode(content.programs[id]));
  add_texts(out.paths, {}, content.paths);
  out.generated = content.generated;
  // Appending in key order fills pages and makes equal content equal bytes.
  for (Records* records : {&out.names, &out.paths}) std::sort(records->begin(), records->end());
  return out;
}

Result<void> write_pages(const std::string& path, const Tables& tables) {
  store::Databases databases;
  const std::pair<const char*, const Records*> named[] = {
      {map_format::kGeneratedDb, &tables.generated}, {map_format::kMetaDb, &tables.meta},
      {map_format::kNamesDb, &tables.names},         {map_format::kObjectsDb, &tables.objects},
      {map_format::kPathsDb, &tables.paths},         {map_format::kProgramsDb, &tables.programs},
      {map_format::kViewsDb, &tables.views}};
  for (const auto& [name, records] : named)
    databases[name].assign(records->begin(), records->end());
  return store::write_databases(path, databases);
}

Result<void> append_trailer(AtomicFile& file) {
  auto all = map_format::file_bytes(file.fd(), file.temp_path());
  if (!all) return fail(std::move(all.error()));
  map_format::Trailer trailer;
  trailer.length = all->size();
  *all += map_format::encode_trailer(trailer).substr(0, map_format::kTrailerHashed);
  trailer.hash = checksum_of(*all);
  if (::lseek(file.fd(), 0, SEEK_END) < 0) return fail_errno(file.temp_path(), "cannot write");
  return file.write(map_format::encode_trailer(trailer));
}

/// LMDB calls a short write EIO (mdb.c, mdb_page_flush); the next write to a full disk says why.
int real_reason(const AtomicFile& file, int code) {
  if (code != EIO) return code;
  const std::string page(65536, '\0');
  struct stat st {};
  if (::fstat(file.fd(), &st) != 0) return code;
  for (off_t end = st.st_size; end < st.st_size + 64 * 65536;) {
    const ssize_t written = ::pwrite(file.fd(), page.data(), page.size(), end);
    if (written < 0) return errno;
    end += written;
  }
  return code;
}

}  // namespace

Result<void> write_map(const MapContent& content, const std::string& path) {
  if (const std::string why = map_format::broken_rule(content); !why.empty())
    return fail_errno(path, "cannot write a map: " + why, EINVAL);
  auto file = AtomicFile::create(path);
  if (!file) return fail(std::move(file.error()));
  // Whatever the umask: root serves programs by no map that others may write (map_reader.hpp).
  struct stat status {};
  if (::fstat(file->fd(), &status) != 0 || ::fchmod(file->fd(), status.st_mode & 0755) != 0)
    return fail_errno(path, "cannot write");
  auto done = write_pages(file->temp_path(), make_tables(content));
  if (done) done = append_trailer(*file);
  // The temporary name means nothing to anyone: the error names the map.
  if (!done) return fail_errno(path, "cannot write", real_reason(*file, done.error().code()));
  return file->commit();
}

}  // namespace heddle
