// SPDX-License-Identifier: MIT
#include "resolver/map/index_writer.hpp"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_map>

#include "resolver/map/index_format.hpp"

namespace heddle {
namespace {

using index_format::Bucket;
using index_format::Header;
using index_format::Program;
using Targets = std::map<std::string_view, std::string>;  ///< name -> where it leads

template <class T>
void append(std::string& out, const T& record) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  static_assert(std::has_unique_object_representations_v<T>);
  out.append(reinterpret_cast<const char*>(&record), sizeof record);
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0: all of it
}

/// Whether `name` is asked for by its exact bytes, whoever asks.
bool is_plain_name(std::string_view name) {
  // dl-load.c expands $ORIGIN and its kin per caller, both in names and in what we answer.
  return name.find('$') == std::string_view::npos &&
         (name.front() == '/' || name.find('/') == std::string_view::npos);
}

class IndexBuilder {
 public:
  explicit IndexBuilder(const IndexInput& input) : in_(input), content_(input.content) {}
  Result<std::string> build();

 private:
  /// The path under which each object of `view` is opened, shortest first, by object.
  const std::vector<std::string>& view_paths(ViewId view);
  bool is_loader(const MapProgram& program, std::string_view name, ObjectId object) const;
  Targets targets_of(const MapProgram& program);
  std::uint64_t add_string(std::string_view text);
  /// Offset of the program's table in tables_.
  std::uint64_t add_table(const Targets& targets, std::uint32_t& mask);

  const IndexInput& in_;
  const MapContent& content_;
  std::map<ViewId, std::vector<std::string>> view_paths_;
  std::unordered_map<std::string, std::uint64_t> string_offsets_;
  std::string strings_;
  std::unordered_map<std::string, std::uint64_t> table_offsets_;
  std::string tables_;
};

const std::vector<std::string>& IndexBuilder::view_paths(ViewId view) {
  auto [entry, fresh] = view_paths_.try_emplace(view);
  std::vector<std::string>& paths = entry->second;
  if (!fresh) return paths;
  paths.resize(content_.objects.size());
  std::string prefix = in_.mount_point + "/";
  if (content_.views.size() > 1) prefix += content_.views[view].name + "/";
  for (const auto& [name, object] : content_.views[view].names)
    if (paths[object].empty() || paths[object].size() > prefix.size() + name.size())
      paths[object] = prefix + name;
  return paths;
}

bool IndexBuilder::is_loader(const MapProgram& program, std::string_view name,
                             ObjectId object) const {
  const auto at = std::lower_bound(
      content_.paths.begin(), content_.paths.end(), program.interpreter,
      [](const auto& entry, const std::string& path) { return entry.first < path; });
  if (at != content_.paths.end() && at->first == program.interpreter && at->second == object)
    return true;
  // Also when the map knows the loader by another of its paths.
  const std::string_view loader = base_name(program.interpreter);
  return !loader.empty() &&
         (base_name(name) == loader || content_.objects[object].soname == loader);
}

Targets IndexBuilder::targets_of(const MapProgram& program) {
  Targets out;
  const std::vector<std::string>& paths = view_paths(program.view);
  for (const auto& [name, object] : program.guided) {
    const bool direct = in_.direct[object] || paths[object].empty();
    const std::string& target = direct ? content_.objects[object].path : paths[object];
    if (!is_plain_name(name) || is_loader(program, name, object) || name == target ||
        !is_plain_name(target) || target.size() >= PATH_MAX)
      continue;
    out.emplace(name, target);
  }
  return out;
}

std::uint64_t IndexBuilder::add_string(std::string_view text) {
  const auto [entry, fresh] = string_offsets_.try_emplace(std::string(text), strings_.size());
  if (fresh) strings_.append(text).push_back('\0');
  return entry->second;
}

std::uint64_t IndexBuilder::add_table(const Targets& targets, std::uint32_t& mask) {
  const std::size_t count = std::bit_ceil(std::max<std::size_t>(2, 2 * targets.size()));
  mask = static_cast<std::uint32_t>(count - 1);
  std::vector<Bucket> buckets(count);
  for (const auto& [name, target] : targets) {
    const std::uint64_t hash = index_format::fnv1a(name.data(), name.size());
    std::size_t at = hash & mask;
    while (buckets[at].name_offset) at = (at + 1) & mask;
    // One more than the offset among the strings, until build() knows where these lie.
    buckets[at] = {hash, static_cast<std::uint32_t>(add_string(name) + 1),
                   static_cast<std::uint32_t>(add_string(target) + 1)};
  }
  std::string bytes;
  for (const Bucket& bucket : buckets) append(bytes, bucket);
  const auto [entry, fresh] = table_offsets_.try_emplace(std::move(bytes), tables_.size());
  if (fresh) tables_ += entry->first;
  return entry->second;
}

Result<std::string> IndexBuilder::build() {
  const std::string where = in_.mount_point;
  if (in_.programs.size() != content_.programs.size() ||
      in_.direct.size() != content_.objects.size())
    return fail_errno(where, "cannot make an index: sizes differ", EINVAL);

  struct Entry {
    Targets targets;
    std::uint64_t tls = 0;
  };
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::int64_t>, Entry> entries;
  for (std::size_t i = 0; i < content_.programs.size(); ++i) {
    const auto& stamp = in_.programs[i];
    if (!stamp) continue;
    Targets targets = targets_of(content_.programs[i]);
    auto [at, fresh] = entries.try_emplace({stamp->id.dev, stamp->id.ino, stamp->mtime_ns});
    Entry& entry = at->second;
    entry.tls = std::max(entry.tls, content_.programs[i].static_tls_bytes);
    if (fresh) {
      entry.targets = std::move(targets);
    } else {
      // One file under two names with views of their own: only what both agree on is safe.
      std::erase_if(entry.targets, [&](const auto& target) {
        const auto other = targets.find(target.first);
        return other == targets.end() || other->second != target.second;
      });
    }
  }

  std::vector<Program> programs;
  for (const auto& [key, entry] : entries) {
    Program program{};
    std::tie(program.dev, program.ino, program.mtime_ns) = key;
    program.optional_static_tls =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(entry.tls, UINT32_MAX));
    program.buckets_offset = add_table(entry.targets, program.bucket_mask);
    programs.push_back(program);
  }
  const std::uint64_t tables_offset = sizeof(Header) + programs.size() * sizeof(Program);
  const std::uint64_t strings_offset = tables_offset + tables_.size();
  if (strings_.empty()) strings_.push_back('\0');  // the last byte is NUL in any case
  Header header{};
  header.file_size = strings_offset + strings_.size();
  if (header.file_size > UINT32_MAX) return fail_errno(where, "cannot make an index", EFBIG);

  std::string body;
  for (Program& program : programs) {
    program.buckets_offset += tables_offset;
    append(body, program);
  }
  for (std::size_t at = 0; at < tables_.size(); at += sizeof(Bucket)) {
    Bucket bucket;
    std::memcpy(&bucket, tables_.data() + at, sizeof bucket);
    if (bucket.name_offset) {
      bucket.name_offset += static_cast<std::uint32_t>(strings_offset) - 1;
      bucket.target_offset += static_cast<std::uint32_t>(strings_offset) - 1;
    }
    append(body, bucket);
  }
  body += strings_;

  std::copy(std::begin(index_format::kMagic), std::end(index_format::kMagic), header.magic);
  header.version = index_format::kVersion;
  header.program_count = static_cast<std::uint32_t>(programs.size());
  header.programs_offset = sizeof(Header);
  header.checksum = index_format::fnv1a(body.data(), body.size());
  std::string out;
  append(out, header);
  return out + body;
}

}  // namespace

Result<std::string> make_index(const IndexInput& input) { return IndexBuilder(input).build(); }

}  // namespace heddle
