// SPDX-License-Identifier: MIT
#include "resolver/map/map_writer.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "base/fd.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/databases.hpp"

namespace heddle {
namespace {

using map_format::encode;
using map_format::number_key;

/// A database's content in key order: that fills pages and makes equal content equal bytes.
using Records = std::vector<std::pair<std::string, std::string>>;

using Tables = std::map<std::string_view, Records>;

Tables make_tables(const MapContent& content) {
  Tables out;
  const map_format::Meta meta{map_format::kMapVersion, content.host,
                              static_cast<std::uint32_t>(content.objects.size()),
                              static_cast<std::uint32_t>(content.views.size()),
                              static_cast<std::uint32_t>(content.programs.size())};
  out[map_format::kMetaDb].emplace_back("meta", encode(meta));
  auto& names = out[map_format::kNamesDb];
  auto& paths = out[map_format::kPathsDb];
  const auto add_numbered = [&](const char* database, const auto& list, auto text_of) {
    std::uint32_t id = 0;
    for (const auto& one : list) out[database].emplace_back(number_key(id++), text_of(one));
    out[database];
  };
  add_numbered(map_format::kObjectsDb, content.objects, [](const auto& o) { return encode(o); });
  add_numbered(map_format::kProgramsDb, content.programs, [](const auto& p) { return encode(p); });
  add_numbered(map_format::kViewsDb, content.views, [](const auto& view) { return view.name; });
  for (ViewId id = 0; id < content.views.size(); ++id)
    for (const auto& [name, object] : content.views[id].names)
      names.emplace_back(number_key(id) + name, encode(object));
  for (const auto& [path, object] : content.paths) paths.emplace_back(path, encode(object));
  out[map_format::kGeneratedDb] = content.generated;
  return out;
}

Result<void> write_pages(const std::string& path, const Tables& tables) {
  store::Databases databases;
  for (const auto& [name, records] : tables) databases[name].assign(records.begin(), records.end());
  return store::write_databases(path, databases);
}

Result<void> append_trailer(AtomicFile& file) {
  auto all = TRY(map_format::file_bytes(file.fd(), file.temp_path()));
  map_format::Trailer trailer;
  trailer.length = all.size();
  all += map_format::encode_trailer(trailer).substr(0, map_format::kTrailerHashed);
  trailer.hash = checksum_of(all);
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
  auto file = TRY(AtomicFile::create(path));
  // Whatever the umask: root serves programs by no map that others may write (map_reader.hpp).
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0 || ::fchmod(file.fd(), status.st_mode & 0755) != 0)
    return fail_errno(path, "cannot write");
  auto done = write_pages(file.temp_path(), make_tables(content));
  if (done) done = append_trailer(file);
  // The temporary name means nothing to anyone: the error names the map.
  if (!done) return fail_errno(path, "cannot write", real_reason(file, done.error().code()));
  return file.commit();
}

}  // namespace heddle
