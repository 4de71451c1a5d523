// SPDX-License-Identifier: MIT
#include "resolver/map/map_writer.hpp"

#include <sys/stat.h>

#include <map>

#include "base/atomic_file.hpp"
#include "base/try.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/databases.hpp"

namespace heddle {
namespace {

using map_format::encode;
using map_format::number_key;

/// A database's content in key order: that fills pages and makes equal content equal bytes.
using Records = std::vector<std::pair<std::string, std::string>>;

Result<std::string> pages_of(const MapContent& content) {
  std::map<std::string_view, Records> tables;
  const map_format::Meta meta{map_format::kMapVersion, content.host,
                              static_cast<std::uint32_t>(content.objects.size()),
                              static_cast<std::uint32_t>(content.views.size()),
                              static_cast<std::uint32_t>(content.programs.size())};
  tables[map_format::kMetaDb].emplace_back("meta", encode(meta));
  auto& names = tables[map_format::kNamesDb];
  auto& paths = tables[map_format::kPathsDb];
  const auto add_numbered = [&](const char* database, const auto& list, auto text_of) {
    auto& records = tables[database];
    std::uint32_t id = 0;
    for (const auto& one : list) records.emplace_back(number_key(id++), text_of(one));
  };
  add_numbered(map_format::kObjectsDb, content.objects, [](const auto& o) { return encode(o); });
  add_numbered(map_format::kProgramsDb, content.programs, [](const auto& p) { return encode(p); });
  add_numbered(map_format::kViewsDb, content.views, [](const auto& view) { return view.name; });
  for (ViewId id = 0; id < content.views.size(); ++id)
    for (const auto& [name, object] : content.views[id].names)
      names.emplace_back(number_key(id) + name, encode(object));
  for (const auto& [path, object] : content.paths) paths.emplace_back(path, encode(object));
  tables[map_format::kGeneratedDb] = content.generated;
  store::Databases databases;
  for (const auto& [name, records] : tables) databases[name].assign(records.begin(), records.end());
  return store::write_databases(databases);
}

}  // namespace

Result<void> write_map(const MapContent& content, const std::string& path) {
  if (const auto good = map_format::check_rules(content); !good)
    return fail_errno(path, "cannot write a map: " + good.error().message(), EINVAL);
  auto file = TRY(AtomicFile::create(path));
  // Whatever the umask: root serves programs by no map that others may write (map_reader.hpp).
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0 || ::fchmod(file.fd(), status.st_mode & 0755) != 0)
    return fail_errno(path, "cannot write");
  auto pages = pages_of(content);
  if (!pages) return fail_errno(path, "cannot write", pages.error().code());
  if (pages->size() > map_format::kMaxMap - map_format::kTrailerSize)
    return fail_errno(path, "cannot write", EFBIG);
  TRY(file.write(map_format::with_trailer(std::move(*pages))));
  return file.commit();
}

}  // namespace heddle
