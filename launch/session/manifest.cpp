// SPDX-License-Identifier: MIT
#include "launch/session/manifest.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "base/channel.hpp"
#include "base/elf_file.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "resolver/build/resolver_session.hpp"

namespace heddle::launch {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFile = "/manifest";
constexpr std::size_t kMostItems = 200'000;
constexpr int kDeepest = 100;

/// Of glibc, by its installed names: libc.so.6, libm-2.31.so, libnss_files.so.2, ...
bool is_glibcs(const std::string& soname) {
  constexpr std::string_view kNames[] = {"ld-linux",      "ld64",
                                         "libc",          "libm",
                                         "libpthread",    "libdl",
                                         "librt",         "libutil",
                                         "libanl",        "libmvec",
                                         "libresolv",     "libnsl",
                                         "libthread_db",  "libBrokenLocale",
                                         "libnss_files",  "libnss_dns",
                                         "libnss_compat", "libnss_hesiod"};
  return std::ranges::any_of(kNames, [&](std::string_view name) {
    if (!soname.starts_with(name)) return false;
    const auto rest = std::string_view(soname).substr(name.size());
    return rest.starts_with(".so") || rest.starts_with("-");
  });
}

std::string file_name(const std::string& path) { return fs::path(path).filename().string(); }

/// Whether this machine's kernel would run it; ENOEXEC: no ELF file.
Result<void> check_machine(int fd, const std::string& path) {
  const Fd own = TRY(open_file("/proc/self/exe", O_RDONLY));
  const auto own_bytes = file_bytes(own.get());
  const auto ours = TRY(ElfFile::read(own_bytes));
  const auto bytes = file_bytes(fd);
  auto theirs = ElfFile::read(bytes);
  if (!theirs)
    return fail(Error::with_code(theirs.error().code(), path, "is no program of this machine",
                                 theirs.error().message()));
  if (theirs->is_swapped() || theirs->header.e_machine != ours.header.e_machine ||
      theirs->is_64() != ours.is_64())
    return fail(path, "is no program of this machine", "it is for another processor");
  return {};
}

void set_file(Item& item, const struct stat& status) {
  item.size = static_cast<std::uint64_t>(status.st_size);
  item.device = status.st_dev;
  item.inode = status.st_ino;
}

/// The file that was added. Another one that has its name now is not opened.
Result<Fd> open_again(const Item& item) {
  const Fd handle = TRY(open_file(item.from, O_PATH));
  struct stat status {};
  if (::fstat(handle.get(), &status) != 0) return fail_errno(item.from, "cannot be read");
  if (status.st_dev != item.device || status.st_ino != item.inode)
    return fail_errno(item.from, "has changed since it was added", EBUSY);
  return open_regular_at(handle.get(), item.from);
}

class Tree {
 public:
  Tree(std::string path, std::string name, Fd root)
      : path_(std::move(path)), name_(std::move(name)), root_(std::move(root)) {}

  Result<void> walk(int directory, const std::string& below, int depth,
                    const std::function<Result<void>(Item)>& add) {
    const int again = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(again < 0 ? nullptr : ::fdopendir(again),
                                                      ::closedir);
    if (!listing) return fail_errno(path_ + below, "cannot be listed");
    if (depth > kDeepest) return fail(path_ + below, "cannot be staged", "nested too deep");
    std::set<std::string> names;
    while (const dirent* entry = ::readdir(listing.get())) names.insert(entry->d_name);
    for (const auto& name : names) {
      if (name == "." || name == "..") continue;
      const auto path = path_ + below + "/" + name;
      Item item;
      item.name = name_ + below + "/" + name;
      item.from = path;
      const Fd handle(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      struct stat status {};
      if (!handle || ::fstat(handle.get(), &status) != 0)
        return fail_errno(path, "cannot be staged");
      if (S_ISDIR(status.st_mode)) {
        item.kind = Item::Kind::directory;
        TRY(add(std::move(item)));
        TRY(walk(handle.get(), below + "/" + name, depth + 1, add));
        continue;
      }
      if (S_ISLNK(status.st_mode)) {
        item.kind = Item::Kind::link;
        item.from = TRY(target(handle.get(), path, below + "/" + name));
      } else {
        const Fd file = TRY(open_regular_at(handle.get(), path));
        item.hash = TRY(hash_file(file.get(), path));
        set_file(item, status);
      }
      TRY(add(std::move(item)));
    }
    return {};
  }
  int root() const { return root_.get(); }

 private:
  /// Of a link that stays in this directory.
  Result<std::string> target(int link, const std::string& path, const std::string& below) const {
    char text[4097];
    const auto size = ::readlinkat(link, "", text, sizeof text);
    if (size < 0) return fail_errno(path, "cannot be read");
    if (size == 0 || text[0] == '/' || static_cast<std::size_t>(size) == sizeof text)
      return fail(path, "is a link that leads out of the directory", "",
                  "name what it leads to as a file or library of its own");
    const std::string to(text, static_cast<std::size_t>(size));
    const auto there = open_resolved(root_.get(), below.substr(1), O_PATH,
                                     RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
    if (!there && there.error().code() == ENOSYS)
      return fail(path, "is a link, which cannot be checked before Linux 5.6", "",
                  "name what it leads to as a file or library of its own");
    const auto plain = fs::path(below.substr(1)).parent_path() / to;
    const auto normal = plain.lexically_normal().string();
    if ((there || there.error().code() == ENOENT) && normal != ".." && !normal.starts_with("../"))
      return to;
    return fail(path, "is a link that leads out of the directory", to,
                "name what it leads to as a file or library of its own");
  }

  std::string path_, name_;
  Fd root_;
};

}  // namespace

bool is_inside(std::string_view name) {
  if (name.empty() || name.find('\0') != name.npos) return false;
  for (std::size_t at = 0; at <= name.size();) {
    const auto end = std::min(name.find('/', at), name.size());
    const auto part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

Result<Manifest> Manifest::read(const std::string& directory) {
  Manifest out;
  const auto text = read_file(directory + kFile);
  if (!text && text.error().code() == ENOENT) return out;
  if (!text) return fail(text.error());
  out.items_ = TRY(decode_record<std::vector<Item>>(*text));
  return out;
}

Result<void> Manifest::write(const std::string& directory) const {
  Encoder coder;
  coder(items_);
  const auto path = directory + kFile;
  const Fd file = TRY(open_file(path + ".new", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
  TRY(write_all(file.get(), coder.take(), path));
  if (::rename((path + ".new").c_str(), path.c_str()) != 0)
    return fail_errno(path, "cannot be written");
  return {};
}

void Manifest::set_shipped() {
  for (auto& item : items_) item.shipped = true;
}

Result<void> Manifest::add(Item item) {
  if (!is_inside(item.name)) return fail(item.from, "cannot be staged", "it has no name");
  const auto known = std::ranges::lower_bound(items_, item.name, {}, &Item::name);
  if (known == items_.end() || known->name != item.name) {
    if (items_.size() >= kMostItems) return fail(item.from, "cannot be staged", "too many files");
    items_.insert(known, std::move(item));
    return {};
  }
  const bool is_link = item.kind == Item::Kind::link;
  if (known->kind == item.kind && known->hash == item.hash &&
      (!is_link || known->from == item.from)) {
    item.shipped = known->shipped;
    *known = std::move(item);
    return {};
  }
  return fail(item.from, "has the same name as " + known->from + ", but other content",
              item.name + " is in the session already");
}

Result<void> Manifest::add_content(const std::string& path, std::string name) {
  const Fd file = TRY(open_regular(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail_errno(path, "cannot be read");
  Item item;
  item.name = std::move(name);
  item.from = fs::absolute(path).string();
  item.hash = TRY(hash_file(file.get(), path));
  set_file(item, status);
  return add(std::move(item));
}

Result<void> Manifest::add_closure(const std::string& path, const std::string& to) {
  ResolverSession session;
  const Fd file = TRY(open_regular(path));
  const auto bytes = file_bytes(file.get());
  const auto elf = TRY(ElfFile::read(bytes));
  const auto interpreter = TRY(elf.interpreter());
  if (!interpreter && !elf.segment(PT_DYNAMIC)) return {};  // static
  if (!interpreter && to != "lib") return {};               // static-pie
  const auto options = search_options_from_environment();
  const auto loader = TRY(read_loader_profile(
      session.world, interpreter.value_or(LoaderProfile().interpreter), options.hwcaps_tunable));
  const auto closure = TRY(resolve(session.world, loader, path, options));
  if (!closure.missing.empty()) {
    const auto& first = closure.missing.front();
    return fail(first.name, "which " + closure.objects[first.needed_by].path + " needs",
                first.reason);
  }
  for (const auto& object : closure.objects) {
    if (object.found_by == FoundBy::program || object.found_by == FoundBy::interpreter ||
        object.found_by == FoundBy::preload || object.found_by == FoundBy::path)
      continue;
    const auto name = file_name(object.requested_as);
    if (!is_glibcs(name)) TRY(add_content(object.path, to + "/" + name));
  }
  return {};
}

Result<void> Manifest::add_binary(const std::string& given) {
  const auto path = fs::absolute(TRY(find_program(given))).string();
  const Fd file = TRY(open_regular(path));
  char first[2] = {};
  const bool is_script =
      ::pread(file.get(), first, 2, 0) == 2 && first[0] == '#' && first[1] == '!';
  const auto name = file_name(path);
  const auto before = items_;
  auto added = is_script ? Result<void>() : check_machine(file.get(), path);
  if (added) added = add_content(path, "bin/" + name);
  if (added && !is_script) added = add_closure(path, "libs/" + name);
  if (!added) items_ = before;
  return added;
}

Result<void> Manifest::add_library(const std::string& given) {
  const auto path = fs::absolute(given).string();
  const Fd file = TRY(open_regular(path));
  const auto before = items_;
  auto added = check_machine(file.get(), path);
  if (added) added = add_content(path, "lib/" + file_name(path));
  if (added) added = add_closure(path, "lib");
  if (!added) items_ = before;
  return added;
}

Result<void> Manifest::add_directory(const std::string& given) {
  auto path = fs::absolute(given).lexically_normal().string();
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  Tree tree(path, "lib/" + file_name(path), TRY(open_file(path, O_RDONLY | O_DIRECTORY)));
  const auto before = items_;
  Item top;
  top.kind = Item::Kind::directory;
  top.name = "lib/" + file_name(path);
  top.from = path;
  auto added = add(std::move(top));
  if (added) added = tree.walk(tree.root(), "", 0, [&](Item item) { return add(std::move(item)); });
  if (!added) items_ = before;
  return added;
}

Result<void> Manifest::add_file(const std::string& path) {
  return add_content(path, "files/" + file_name(fs::absolute(path).string()));
}

Result<Pack> write_pack(const std::string& path, const std::vector<Item>& items,
                        const std::vector<std::string>& missing) {
  const std::set<std::string> wanted(missing.begin(), missing.end());
  std::set<std::string> taken;
  std::vector<Item> list;
  std::vector<std::size_t> with_content;
  for (const auto& item : items) {
    if (item.shipped) continue;
    list.push_back(item);
    const auto hash = item.hash.hex();
    if (item.kind != Item::Kind::file) continue;
    if (wanted.contains(hash) && taken.insert(hash).second)
      with_content.push_back(list.size() - 1);
    else
      list.back().shipped = true;  // brings no content
  }
  Encoder coder;
  coder(list);
  const auto text = coder.take();
  Pack out{path, hash_bytes(text), text.size(), 0};
  const Fd pack = TRY(open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
  TRY(write_all(pack.get(), text, path));
  std::string buffer(1UL << 20, '\0');
  for (const auto i : with_content) {
    const auto& item = list[i];
    const Fd file = TRY(open_again(item));
    std::uint64_t left = item.size;
    while (left > 0) {
      const auto got =
          ::read(file.get(), buffer.data(), std::min<std::uint64_t>(left, buffer.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_errno(item.from, "cannot be read");
      if (got == 0) return fail_errno(item.from, "has changed since it was added", EBUSY);
      TRY(write_all(pack.get(), {buffer.data(), static_cast<std::size_t>(got)}, path));
      left -= static_cast<std::uint64_t>(got);
    }
    out.content += item.size;
  }
  return out;
}

}  // namespace heddle::launch
