// SPDX-License-Identifier: MIT
//
// The format is that of LMDB 0.9 (mdb.c: MDB_page, MDB_node, MDB_db, MDB_meta), data version 1,
// unchanged since 2011, of a 64-bit machine with this one's byte order. A file is pages of one
// size; the first two are meta pages, of which the one with the later transaction counts. It names
// the root of the main B+ tree, whose records are the named databases: trees of their own. A value
// that is too long for a page has its own run of overflow pages. DUPSORT is not supported.
#include "resolver/store/databases.hpp"

#include <lmdb.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/fd.hpp"

namespace heddle::store {
namespace {

constexpr std::uint32_t kMagic = 0xBEEFC0DE;
constexpr std::uint32_t kDataVersion = 1;
constexpr std::size_t kPageHeader = 16;  // number, 2 unused bytes, flags, lower, upper
constexpr std::size_t kNodeHeader = 8;   // low and high half of a size, flags, size of the key
constexpr std::size_t kMetaSize = 136;
constexpr std::size_t kTreeSize = 48;
constexpr std::size_t kSmallestPage = 512;
constexpr std::size_t kLargestPage = 32768;  // MAX_PAGESIZE
constexpr unsigned kDeepest = 32;            // CURSOR_STACK
constexpr std::uint64_t kNoPage = ~std::uint64_t{0};

enum PageFlags : std::uint16_t { page_branch = 1, page_leaf = 2, page_overflow = 4, page_meta = 8 };
constexpr std::uint16_t kPageDirty = 0x10;  // ignored
enum NodeFlags : std::uint16_t { node_plain = 0, node_big = 1, node_tree = 2 };

/// Zero beyond the end of `bytes`: callers check the sizes that matter.
template <class T>
T number_at(std::string_view bytes, std::size_t offset) {
  T value{};
  if (offset <= bytes.size() && bytes.size() - offset >= sizeof(T))
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// MDB_db.
struct Tree {
  std::uint16_t flags = 0;
  std::uint16_t depth = 0;
  std::uint64_t entries = 0;
  std::uint64_t root = kNoPage;
};

Tree tree_at(std::string_view bytes) {
  return {number_at<std::uint16_t>(bytes, 4), number_at<std::uint16_t>(bytes, 6),
          number_at<std::uint64_t>(bytes, 32), number_at<std::uint64_t>(bytes, 40)};
}

struct Node {
  std::uint32_t size = 0;  ///< of a leaf's value
  std::uint64_t page = 0;  ///< of a branch
  std::uint16_t flags = 0;
  std::string_view key;
  std::string_view rest;  ///< of its page, behind the key
};

/// Member functions return why the file is damaged, or nullptr.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  const char* read(Databases& out) {
    const auto* why = find_main_tree();
    if (why) return why;
    Records named;
    if ((why = read_tree(main_, node_tree, named))) return why;
    for (const auto& [name, bytes] : named)
      if ((why = read_tree(tree_at(bytes), node_plain, out[name]))) return why;
    return nullptr;
  }

 private:
  const char* find_main_tree() {
    page_size_ = number_at<std::uint32_t>(file_, kPageHeader + 24);
    if (!std::has_single_bit(page_size_) || page_size_ < kSmallestPage ||
        page_size_ > kLargestPage || file_.size() / page_size_ < 2)
      return "it has no pages";
    std::uint64_t latest = 0;
    for (const std::size_t page : {0, 1}) {
      const auto meta = file_.substr(page * page_size_ + kPageHeader, kMetaSize);
      if (number_at<std::uint32_t>(meta, 0) != kMagic ||
          number_at<std::uint32_t>(meta, 4) != kDataVersion)
        return "its header is invalid";
      const auto transaction = number_at<std::uint64_t>(meta, 128);
      if (page == 1 && transaction <= latest) break;  // mdb_env_pick_meta()
      latest = transaction;
      main_ = tree_at(meta.substr(72));
    }
    taken_.resize(file_.size() / page_size_);
    taken_[0] = taken_[1] = true;
    return nullptr;
  }

  /// `count` pages from `first` on. Each page may be taken once.
  const char* take_pages(std::uint64_t first, std::uint64_t count, std::string_view& out) {
    if (first >= taken_.size() || count > taken_.size() - first) return "a page is not in it";
    const auto begin = taken_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    if (std::find(begin, end, true) != end) return "a page is used twice";
    std::fill(begin, end, true);
    out = file_.substr(first * page_size_, count * page_size_);
    return nullptr;
  }

  const char* read_tree(const Tree& tree, NodeFlags values, Records& out) {
    if (tree.flags != 0) return "it has databases of an unknown kind";
    if (tree.depth > kDeepest) return "a tree is too deep";
    if (tree.depth == 0)
      return tree.root == kNoPage && tree.entries == 0 ? nullptr : "a tree has no root";
    if (const auto* why = read_page(tree.root, tree.depth, values, out)) return why;
    return out.size() == tree.entries ? nullptr : "records are missing";
  }

  /// The page at height `depth` of its tree, and all below.
  const char* read_page(std::uint64_t number, unsigned depth, NodeFlags values, Records& out) {
    std::string_view page;
    if (const auto* why = take_pages(number, 1, page)) return why;
    const auto lower = number_at<std::uint16_t>(page, 12);
    const auto upper = number_at<std::uint16_t>(page, 14);
    const auto kind = number_at<std::uint16_t>(page, 10) & ~kPageDirty;
    if (kind != (depth > 1 ? page_branch : page_leaf) || lower < kPageHeader || lower % 2 != 0 ||
        lower > upper || upper > page.size())
      return "a page is invalid";
    std::size_t room = page.size() - upper;
    for (std::size_t at = kPageHeader; at < lower; at += 2) {
      Node node;
      const std::size_t offset = number_at<std::uint16_t>(page, at);
      if (offset < upper || !node_at(page, offset, node)) return "a record is not in its page";
      const char* why = depth > 1 ? read_page(node.page, depth - 1, values, out)
                                  : add_record(node, values, room, out);
      if (why) return why;
    }
    return nullptr;
  }

  static bool node_at(std::string_view page, std::size_t offset, Node& out) {
    if (offset > page.size() || page.size() - offset < kNodeHeader) return false;
    constexpr bool little = std::endian::native == std::endian::little;
    const auto low = number_at<std::uint16_t>(page, offset + (little ? 0 : 2));
    const auto high = number_at<std::uint16_t>(page, offset + (little ? 2 : 0));
    const auto key_size = number_at<std::uint16_t>(page, offset + 6);
    out.size = std::uint32_t{high} << 16 | low;
    out.flags = number_at<std::uint16_t>(page, offset + 4);
    out.page = std::uint64_t{out.flags} << 32 | out.size;
    out.rest = page.substr(offset + kNodeHeader);
    if (key_size > out.rest.size()) return false;
    out.key = out.rest.substr(0, key_size);
    out.rest.remove_prefix(key_size);
    return true;
  }

  /// `room`: left for the records of the page, which do not overlap.
  const char* add_record(const Node& node, NodeFlags values, std::size_t& room, Records& out) {
    if (node.flags != values && (values != node_plain || node.flags != node_big))
      return "it has records of an unknown kind";
    if (!out.empty() && node.key <= out.back().first) return "its keys are out of order";
    const std::size_t inside = node.flags == node_big ? sizeof(std::uint64_t) : node.size;
    const auto taken = kNodeHeader + node.key.size() + inside;
    if (inside > node.rest.size() || taken > room) return "a record is longer than its page";
    room -= taken;
    auto value = node.rest.substr(0, inside);
    if (node.flags == node_tree && value.size() != kTreeSize) return "a database is invalid";
    if (node.flags == node_big)
      if (const auto* why = big_value(number_at<std::uint64_t>(value, 0), node.size, value))
        return why;
    out.emplace_back(node.key, value);
    return nullptr;
  }

  const char* big_value(std::uint64_t first, std::uint32_t size, std::string_view& out) {
    const auto count = (kPageHeader - 1 + size) / page_size_ + 1;  // OVPAGES
    std::string_view pages;
    if (const auto* why = take_pages(first, count, pages)) return why;
    if ((number_at<std::uint16_t>(pages, 10) & ~kPageDirty) != page_overflow)
      return "a long value is not in overflow pages";
    out = pages.substr(kPageHeader, size);
    return nullptr;
  }

  std::string_view file_;
  std::size_t page_size_ = 0;
  Tree main_;
  std::vector<bool> taken_;  ///< by page
};

// The writer.

using Env = std::unique_ptr<MDB_env, decltype(&::mdb_env_close)>;
using Txn = std::unique_ptr<MDB_txn, decltype(&::mdb_txn_abort)>;

MDB_val to_val(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

int open_env(MDB_env* env, const std::string& path, std::size_t databases, std::size_t map_size) {
  int rc = ::mdb_env_set_maxdbs(env, static_cast<MDB_dbi>(databases));
  if (rc == 0) rc = ::mdb_env_set_mapsize(env, map_size);
  return rc ? rc : ::mdb_env_open(env, path.c_str(), MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0666);
}

int fill(MDB_txn* txn, std::string_view name, const Records& records) {
  MDB_dbi dbi = 0;
  if (const int rc = ::mdb_dbi_open(txn, std::string(name).c_str(), MDB_CREATE, &dbi)) return rc;
  for (const auto& [key, value] : records) {
    MDB_val k = to_val(key);
    MDB_val v = to_val(value);
    if (const int rc = ::mdb_put(txn, dbi, &k, &v, MDB_APPEND)) return rc;
  }
  return 0;
}

int write_all(MDB_env* env, const Databases& databases) {
  MDB_txn* raw = nullptr;
  if (const int rc = ::mdb_txn_begin(env, nullptr, 0, &raw)) return rc;
  Txn txn(raw, &::mdb_txn_abort);
  for (const auto& [name, records] : databases)
    if (const int rc = fill(txn.get(), name, records)) return rc;
  return ::mdb_txn_commit(txn.release());
}

std::size_t payload(const Databases& databases) {
  std::size_t bytes = 0;
  for (const auto& [name, records] : databases)
    for (const auto& [key, value] : records) bytes += key.size() + value.size() + 16;
  return bytes;
}

}  // namespace

std::optional<std::string_view> find(const Records& records, std::string_view key) {
  const auto at = std::lower_bound(records.begin(), records.end(), key,
                                   [](const auto& record, auto k) { return record.first < k; });
  if (at == records.end() || at->first != key) return std::nullopt;
  return at->second;
}

Result<Databases> read_databases(std::string_view file) {
  Databases out;
  if (const auto* why = Reader(file).read(out)) return fail(Error::with_code(EBADMSG, {}, why));
  return out;
}

Result<std::string> write_databases(const Databases& databases) {
  // In memory: LMDB reports every short write as EIO.
  const Fd memory(::memfd_create("heddle-map", MFD_CLOEXEC));
  if (!memory) return fail_errno("", "cannot write");
  MDB_env* raw = nullptr;
  int rc = ::mdb_env_create(&raw);
  const Env env(raw, &::mdb_env_close);
  // A power of two: the size is written into the file, whose bytes depend on the content alone.
  std::size_t map_size = std::bit_ceil(std::max<std::size_t>(1U << 20, 2 * payload(databases)));
  const auto path = "/proc/self/fd/" + std::to_string(memory.get());
  if (rc == 0) rc = open_env(env.get(), path, databases.size(), map_size);
  if (rc == 0) rc = write_all(env.get(), databases);
  // Values just above half a page waste the other half: twice the payload may not suffice.
  while (rc == MDB_MAP_FULL) {
    rc = ::mdb_env_set_mapsize(env.get(), map_size *= 2);
    if (rc == 0) rc = write_all(env.get(), databases);
  }
  if (rc == 0) return read_all(memory.get(), "");
  // In memory only RLIMIT_FSIZE cuts a write short.
  const int code = rc == EIO               ? EFBIG
                   : rc > 0                ? rc
                   : rc == MDB_KEYEXIST    ? EEXIST
                   : rc == MDB_BAD_VALSIZE ? EINVAL
                                           : EIO;
  return fail(Error::with_code(code, "", "cannot write", ::mdb_strerror(rc)));
}

}  // namespace heddle::store
