// SPDX-License-Identifier: MIT
#pragma once

// A small RAII wrapper over LMDB, the only place that includes lmdb.h. Keys and values are bytes;
// views handed out point into the mapped file and live as long as their transaction (in a WriteTxn:
// until its next change). Order is memcmp's, a shorter key first.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"

struct MDB_env;
struct MDB_txn;
struct MDB_cursor;

namespace heddle::store {

inline constexpr std::size_t kMaxKey = 511;  ///< LMDB's compiled-in limit; longer keys fail, EINVAL
/// Error::code() of a write that does not fit into the map: abort, Env::grow(), try again.
inline constexpr int kMapFull = ENOBUFS;
/// Error::code() of a begin after another process grew the map: Env::grow(0), try again.
inline constexpr int kMapResized = ESTALE;

enum class Access : std::uint8_t { read_only, read_write };
enum class Locking : std::uint8_t {
  shared,  ///< many processes: a `<path>-lock` file beside the database
  none,    ///< the caller is alone, or the file is immutable; no lock file
};
enum class Durability : std::uint8_t {
  synced,    ///< commit() returns when the disk has it
  unsynced,  ///< the caller syncs, or can rebuild: a crash may lose or damage the file
};

struct EnvOptions {
  Access access = Access::read_write;
  Locking locking = Locking::shared;
  Durability durability = Durability::synced;
  std::size_t map_size = std::size_t{1} << 24;  ///< bytes; ignored (the file's own) when read only
  unsigned max_databases = 8;
  unsigned max_readers = 126;  ///< at once, over all processes; more fail with EAGAIN
  unsigned mode = 0666;        ///< of a new file, less the umask
};

/// Handle of one named database; valid while its Env lives, see ReadTxn::keep_handles().
class Dbi {
 private:
  friend class ReadTxn;
  friend class WriteTxn;
  explicit Dbi(unsigned handle) noexcept : handle_(handle) {}
  unsigned handle_;
};

using Entry = std::pair<std::string_view, std::string_view>;

/// Walks a database in key order: `for (auto e = c.first(); *e; e = c.next())`. It must go before
/// its transaction does.
class Cursor {
 public:
  Result<std::optional<Entry>> first();
  Result<std::optional<Entry>> next();
  /// The first entry whose key is not less than `key`.
  Result<std::optional<Entry>> seek(std::string_view key);

 private:
  friend class ReadTxn;
  struct Close {
    void operator()(MDB_cursor* cursor) const noexcept;
  };
  Cursor(MDB_cursor* cursor, std::string_view where) : cursor_(cursor), where_(where) {}
  Result<std::optional<Entry>> move(int operation, std::string_view key = {});
  std::unique_ptr<MDB_cursor, Close> cursor_;
  std::string_view where_;  ///< the Env's path, for messages
};

/// A snapshot. Not for two threads at once, but bound to none. The destructor ends it.
class ReadTxn {
 public:
  /// nullopt: no such database. The handle dies with the transaction unless keep_handles() is
  /// called.
  Result<std::optional<Dbi>> open(const char* name);
  Result<std::optional<std::string_view>> get(Dbi dbi, std::string_view key) const;
  /// Number of entries.
  Result<std::size_t> count(Dbi dbi) const;
  Result<Cursor> cursor(Dbi dbi) const;
  /// Ends the transaction and lets the handles opened in it serve later ones.
  Result<void> keep_handles();

 protected:
  friend class Env;
  struct Abort {
    void operator()(MDB_txn* txn) const noexcept;
  };
  ReadTxn(MDB_txn* txn, std::string_view where) : txn_(txn), where_(where) {}
  std::unique_ptr<MDB_txn, Abort> txn_;
  std::string_view where_;
};

/// The one writer; another process' waits for it. Nothing has happened until commit() succeeds.
class WriteTxn : public ReadTxn {
 public:
  /// Opens or makes the database.
  Result<Dbi> create(const char* name);
  Result<void> put(Dbi dbi, std::string_view key, std::string_view value);
  /// As put(), for keys that arrive in order (EEXIST otherwise): fuller pages, no search.
  Result<void> append(Dbi dbi, std::string_view key, std::string_view value);
  /// Whether there was such a key.
  Result<bool> erase(Dbi dbi, std::string_view key);
  /// Removes all entries.
  Result<void> clear(Dbi dbi);
  /// The transaction is over in any case; on failure nothing was changed.
  Result<void> commit();

 private:
  friend class Env;
  using ReadTxn::ReadTxn;
};

/// One database file (LMDB's MDB_NOSUBDIR form). Open a file once a process; not usable after
/// fork(). Transactions must end before the Env does. Safe for threads, each with its own
/// transactions.
class Env {
 public:
  /// Fails with EBADMSG on a file that is no LMDB database of this build. LMDB trusts the pages
  /// themselves: who cannot vouch for the file must check its bytes first.
  static Result<Env> open(const std::string& path, const EnvOptions& options);
  Env(Env&&) noexcept = default;
  Env& operator=(Env&&) noexcept = default;

  Result<ReadTxn> begin_read() const;
  Result<WriteTxn> begin_write();
  /// Sets the map's size (0: what the file says by now). No transaction may be open.
  Result<void> grow(std::size_t map_size);
  std::size_t map_size() const;
  /// The database file's descriptor; it stays the Env's.
  int fd() const;

 private:
  struct Close {
    void operator()(MDB_env* env) const noexcept;
  };
  Env(MDB_env* env, std::string path);
  std::unique_ptr<MDB_env, Close> env_;
  std::unique_ptr<const std::string> path_;  ///< stays where it is when the Env moves
};

}  // namespace heddle::store
