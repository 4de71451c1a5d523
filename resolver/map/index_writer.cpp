// SPDX-License-Identifier: MIT
#include "resolver/map/index_writer.hpp"

#include <algorithm>
#include <bit>
#include <climits>
#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "resolver/map/index_format.hpp"
#include "resolver/map/library_path.hpp"

namespace heddle {
namespace {

using index_format::Bucket;
using index_format::File;
using index_format::Header;
using index_format::Program;
/// Where a name leads, and the original file's path.
using Target = std::pair<std::string_view, std::string_view>;
using Targets = std::map<std::string_view, Target>;                       ///< by name
using StampKey = std::tuple<std::uint64_t, std::uint64_t, std::int64_t>;  ///< dev, ino, mtime
using Files = std::map<StampKey, Target>;

StampKey key_of(const FileStamp& stamp) { return {stamp.id.dev, stamp.id.ino, stamp.mtime_ns}; }

template <class T>
void append(std::string& out, const T& record) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  static_assert(std::has_unique_object_representations_v<T>);
  out.append(reinterpret_cast<const char*>(&record), sizeof record);
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0: all of it
}

/// Whether the search directories of `object` depend on its own location.
bool has_own_origin(const MapObject& object) {
  const std::string& list = object.runpath.empty() ? object.rpath : object.runpath;
  return list.find("$ORIGIN") != std::string::npos || list.find("${ORIGIN}") != std::string::npos;
}

/// The objects whose searches at run time (dlopen) would go elsewhere if they were opened in the
/// view: ld.so takes $ORIGIN from the path that it opened (dl-object.c, l_origin).
std::vector<bool> direct_objects(const IndexInput& input) {
  std::vector<bool> direct = input.direct;
  const MapContent& content = input.content;
  for (std::size_t i = 0; i < direct.size(); ++i)
    if (content.objects[i].imports_dlopen && has_own_origin(content.objects[i])) direct[i] = true;
  for (const MapProgram& program : content.programs) {
    std::unordered_map<std::string_view, const MapLibrary*> by_path;
    for (const MapLibrary& library : program.libraries)
      by_path.emplace(content.objects[library.object].path, &library);
    // RPATH, unlike RUNPATH, is inherited from the requesters (dl-load.c).
    std::set<const MapLibrary*> seen;
    for (const MapLibrary& library : program.libraries) {
      if (!content.objects[library.object].imports_dlopen) continue;
      for (const MapLibrary* at = &library; seen.insert(at).second;) {
        const MapObject& object = content.objects[at->object];
        if (object.runpath.empty() && has_own_origin(object)) direct[at->object] = true;
        const auto requester = by_path.find(at->needed_by);
        if (requester != by_path.end()) at = requester->second;
      }
    }
    // What a library that was opened at run time needs may be left to ld.so.
    std::set<ObjectId> at_start;
    for (const MapLibrary& library : program.libraries) at_start.insert(library.object);
    for (const auto& [name, id] : program.guided) {
      const MapObject& object = content.objects[id];
      if (at_start.contains(id) || !has_own_origin(object)) continue;
      if (!std::ranges::all_of(object.needed,
                               [&](const auto& need) { return find_name(program.guided, need); }))
        direct[id] = true;
    }
  }
  return direct;
}

/// Whether a library of the program, or one that it may be guided to, was found by its
/// LD_LIBRARY_PATH: a process with another one must not be guided then.
bool uses_library_path(const MapProgram& program, const MapContent& content) {
  const std::string& value = program.library_path;
  std::set<std::string_view> directories;
  library_path::each_element(value.data(), value.size(), [&](const library_path::Element& element) {
    std::string_view directory(element.text, element.size);
    while (directory.size() > 1 && directory.ends_with('/')) directory.remove_suffix(1);
    directories.insert(directory);
  });
  if (directories.empty()) return false;
  for (const MapLibrary& library : program.libraries)
    if (library.found_by == "ld_library_path") return true;
  // Learned libraries and plugins have no found_by. Subdirectories are those of hwcaps.
  for (const auto& [name, object] : program.guided) {
    std::string_view path = content.objects[object].path;
    for (auto slash = path.rfind('/'); slash != std::string_view::npos; slash = path.rfind('/')) {
      path = path.substr(0, slash);
      if (directories.contains(path)) return true;
    }
  }
  return false;
}

/// Tables of one kind, one after the other; equal ones are stored once.
template <class T>
struct Tables {
  std::uint64_t place(const std::vector<T>& table) {
    std::string bytes;
    for (const T& record : table) append(bytes, record);
    const auto [entry, fresh] = offsets.try_emplace(std::move(bytes), size());
    if (fresh) records.insert(records.end(), table.begin(), table.end());
    return entry->second;
  }
  std::uint64_t size() const { return records.size() * sizeof(T); }

  std::vector<T> records;
  std::unordered_map<std::string, std::uint64_t> offsets;
};

/// A program's ld.so, which is never guided to: the kernel has loaded it.
class Loader {
 public:
  Loader(const MapProgram& program, const MapContent& content)
      : content_(content), name_(base_name(program.interpreter)) {
    if (const auto* object = find_name(content.paths, program.interpreter)) object_ = *object;
  }
  bool is(std::string_view name, ObjectId object) const {
    if (object == object_) return true;
    // The map may have the loader under another path.
    return !name_.empty() && (base_name(name) == name_ || content_.objects[object].soname == name_);
  }

 private:
  const MapContent& content_;
  std::optional<ObjectId> object_;
  std::string_view name_;
};

class IndexBuilder {
 public:
  explicit IndexBuilder(const IndexInput& input) : in_(input), content_(input.content) {}
  Result<std::string> build() {
    const std::string where = in_.mount_point;
    if (in_.programs.size() != content_.programs.size() ||
        in_.direct.size() != content_.objects.size() ||
        (!in_.objects.empty() && in_.objects.size() != content_.objects.size()))
      return fail_errno(where, "cannot make an index: sizes differ", EINVAL);
    direct_ = direct_objects(in_);

    std::map<StampKey, Entry> entries;
    const auto add = [&entries](const FileStamp& stamp, Entry ours) {
      const auto [at, fresh] = entries.try_emplace(key_of(stamp), std::move(ours));
      if (fresh) return;  // else `ours` was not moved from
      // One file under two names, each with its own view: only their common entries are safe.
      Entry& entry = at->second;
      const auto keep_common = [](auto& list, const auto& other) {
        std::erase_if(list, [&](const auto& one) {
          const auto found = other.find(one.first);
          return found == other.end() || found->second != one.second;
        });
      };
      keep_common(entry.targets, ours.targets);
      keep_common(entry.files, ours.files);
      entry.tls = std::max(entry.tls, ours.tls);
      entry.search_path |= ours.search_path;  // equal but for the lowest bit
    };
    for (std::size_t i = 0; i < content_.programs.size(); ++i) {
      const auto inside = stamp_in_tree(content_.programs[i].object);
      if (!in_.programs[i] && !inside) continue;
      Entry ours = entry_of(content_.programs[i]);
      if (inside) add(*inside, ours);
      if (in_.programs[i]) add(*in_.programs[i], std::move(ours));
    }

    std::vector<Program> programs;
    for (auto& [key, entry] : entries) {
      add_any_caller(entry.targets);
      Program program{};
      std::tie(program.dev, program.ino, program.mtime_ns) = key;
      program.optional_static_tls =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(entry.tls, UINT32_MAX));
      program.buckets_offset = add_table(entry.targets, program.bucket_mask);
      program.files_offset = add_files(entry.files);
      program.file_count = static_cast<std::uint32_t>(entry.files.size());
      program.search_path = entry.search_path;
      program.hwcaps = entry.hwcaps;
      programs.push_back(program);
    }
    const std::uint64_t tables_offset = sizeof(Header) + programs.size() * sizeof(Program);
    const std::uint64_t files_offset = tables_offset + tables_.size();
    const std::uint64_t strings_offset = files_offset + files_.size();
    if (strings_.empty()) strings_.push_back('\0');  // the last byte is NUL in any case
    Header header{};
    header.file_size = strings_offset + strings_.size();
    if (header.file_size > UINT32_MAX) return fail_errno(where, "cannot make an index", EFBIG);

    std::string body;
    for (Program& program : programs) {
      program.buckets_offset += tables_offset;
      program.files_offset += files_offset;
      append(body, program);
    }
    for (Bucket bucket : tables_.records) {
      if (bucket.name_offset) {
        bucket.name_offset += static_cast<std::uint32_t>(strings_offset) - 1;
        bucket.target_offset += static_cast<std::uint32_t>(strings_offset) - 1;
      }
      append(body, bucket);
    }
    for (File file : files_.records) {
      file.target_offset += static_cast<std::uint32_t>(strings_offset);
      append(body, file);
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

 private:
  struct Entry {
    Targets targets;
    Files files;
    std::uint64_t tls = 0;
    std::uint32_t search_path = 0;
    std::uint64_t hwcaps = 0;
  };

  /// By object: the shortest path in `view`; empty: none.
  const std::vector<std::string>& view_paths(ViewId view) {
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

  const std::string& target_of(const MapProgram& program, ObjectId object) {
    const std::string& path = view_paths(program.view)[object];
    return direct_[object] || path.empty() ? content_.objects[object].path : path;
  }

  Entry entry_of(const MapProgram& program) {
    Entry out;
    out.tls = program.static_tls_bytes;
    const std::string& path = program.library_path;
    out.search_path = index_format::search_path(index_format::fnv1a(path.data(), path.size()),
                                                uses_library_path(program, content_));
    const std::string& tunable = program.hwcaps_tunable;
    out.hwcaps = index_format::fnv1a(tunable.data(), tunable.size());
    const Loader loader(program, content_);
    for (const auto& [name, object] : program.guided) {
      const std::string& target = target_of(program, object);
      const std::string& origin = content_.objects[object].path;
      if (!is_plain_name(target) || target.size() >= PATH_MAX) continue;
      const auto requested = std::string_view(name).substr(0, name.find('\0'));
      if (is_plain_name(requested) && !loader.is(requested, object) && name != target)
        out.targets.emplace(name, Target(target, origin));
      if (loader.is(origin, object)) continue;
      if (object < in_.objects.size() && in_.objects[object])
        out.files.emplace(key_of(*in_.objects[object]), Target(target, origin));
      if (const auto inside = stamp_in_tree(object))
        out.files.emplace(key_of(*inside), Target(target, origin));
    }
    return out;
  }

  /// Adds where a name of single callers leads for all of them: "/", which no file is, if they
  /// differ.
  void add_any_caller(Targets& targets) {
    Targets any;
    for (const auto& [name, target] : targets) {
      const auto end = name.find('\0');
      if (end == name.npos) continue;
      const auto& key =
          any_caller_.emplace_back(std::string(name.substr(0, end + 1)) + index_format::kAnyCaller);
      const auto [at, fresh] = any.try_emplace(key, target);
      if (!fresh && at->second != target) at->second = {"/", "/"};
    }
    targets.merge(any);
  }

  std::optional<FileStamp> stamp_in_tree(ObjectId object) const {
    return object < in_.in_trees.size() ? in_.in_trees[object] : std::nullopt;
  }

  std::uint64_t add_string(std::string_view text) {
    const auto [entry, fresh] = string_offsets_.try_emplace(text, strings_.size());
    if (fresh) strings_.append(text).push_back('\0');
    return entry->second;
  }

  std::uint64_t add_target(const Target& target) {
    const auto [path, origin] = target;
    const auto [entry, fresh] = target_offsets_.try_emplace(path, strings_.size());
    if (fresh) {
      strings_.append(path).push_back('\0');
      strings_.append(origin == path ? "" : origin).push_back('\0');
    }
    return entry->second;
  }

  std::uint64_t add_table(const Targets& targets, std::uint32_t& mask) {
    const std::size_t count = std::bit_ceil(std::max<std::size_t>(2, 2 * targets.size()));
    mask = static_cast<std::uint32_t>(count - 1);
    std::vector<Bucket> buckets(count);
    for (const auto& [name, target] : targets) {
      const std::uint64_t hash = index_format::fnv1a(name.data(), name.size());
      std::size_t at = hash & mask;
      while (buckets[at].name_offset) at = (at + 1) & mask;
      // One more than the offset in strings_: build() adds where these begin.
      buckets[at] = {hash, static_cast<std::uint32_t>(add_string(name) + 1),
                     static_cast<std::uint32_t>(add_target(target) + 1)};
    }
    return tables_.place(buckets);
  }

  std::uint64_t add_files(const Files& files) {
    std::vector<File> out;
    for (const auto& [key, paths] : files) {
      File& file = out.emplace_back();
      std::tie(file.dev, file.ino, file.mtime_ns) = key;
      file.target_offset = static_cast<std::uint32_t>(add_target(paths));
    }
    return files_.place(out);
  }

  const IndexInput& in_;
  const MapContent& content_;
  std::vector<bool> direct_;
  std::map<ViewId, std::vector<std::string>> view_paths_;
  std::deque<std::string> any_caller_;
  std::unordered_map<std::string_view, std::uint64_t> string_offsets_;  ///< names
  std::unordered_map<std::string_view, std::uint64_t> target_offsets_;
  std::string strings_;
  Tables<Bucket> tables_;
  Tables<File> files_;
};

}  // namespace

Result<std::string> make_index(const IndexInput& input) { return IndexBuilder(input).build(); }

}  // namespace heddle
