// SPDX-License-Identifier: MIT
#include "resolver/store/store.hpp"

#include <lmdb.h>

namespace heddle::store {
namespace {

int to_errno(int rc) {
  switch (rc) {
    case MDB_MAP_FULL:
      return kMapFull;
    case MDB_MAP_RESIZED:
      return kMapResized;
    case MDB_KEYEXIST:
      return EEXIST;
    case MDB_READERS_FULL:
      return EAGAIN;
    case MDB_BAD_VALSIZE:
      return EINVAL;
    default:
      return rc > 0 ? rc : EBADMSG;  // corrupted, page not found, invalid, wrong version, panic
  }
}

tl::unexpected<Error> fail_mdb(std::string_view where, std::string_view what, int rc) {
  if (rc > 0) return fail_errno(where, what, rc);
  // LMDB's own text says more than the errno it is turned into.
  Error error =
      Error::from_errno(where, std::string(what) + ": " + ::mdb_strerror(rc), to_errno(rc));
  return fail(std::move(error));
}

MDB_val to_val(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }
std::string_view to_view(const MDB_val& val) {
  return {static_cast<const char*>(val.mv_data), val.mv_size};
}

}  // namespace

void Cursor::Close::operator()(MDB_cursor* cursor) const noexcept { ::mdb_cursor_close(cursor); }
void ReadTxn::Abort::operator()(MDB_txn* txn) const noexcept { ::mdb_txn_abort(txn); }
void Env::Close::operator()(MDB_env* env) const noexcept { ::mdb_env_close(env); }

Result<std::optional<Entry>> Cursor::move(int operation, std::string_view key) {
  MDB_val k = to_val(key);
  MDB_val v{};
  const int rc = ::mdb_cursor_get(cursor_.get(), &k, &v, static_cast<MDB_cursor_op>(operation));
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) return fail_mdb(where_, "cannot read", rc);
  return Entry{to_view(k), to_view(v)};
}
Result<std::optional<Entry>> Cursor::first() { return move(MDB_FIRST); }
Result<std::optional<Entry>> Cursor::next() { return move(MDB_NEXT); }
Result<std::optional<Entry>> Cursor::seek(std::string_view key) {
  // An empty key is none to LMDB (EINVAL); every key is not less than it.
  return key.empty() ? first() : move(MDB_SET_RANGE, key);
}

Result<std::optional<Dbi>> ReadTxn::open(const char* name) {
  MDB_dbi handle = 0;
  const int rc = ::mdb_dbi_open(txn_.get(), name, 0, &handle);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) return fail_mdb(where_, "cannot open database", rc);
  return Dbi(handle);
}

Result<std::optional<std::string_view>> ReadTxn::get(Dbi dbi, std::string_view key) const {
  // LMDB calls a key of the wrong size an error; asked for, it is just not there.
  if (key.empty() || key.size() > kMaxKey) return std::nullopt;
  MDB_val k = to_val(key);
  MDB_val v{};
  const int rc = ::mdb_get(txn_.get(), dbi.handle_, &k, &v);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) return fail_mdb(where_, "cannot read", rc);
  return to_view(v);
}

Result<std::size_t> ReadTxn::count(Dbi dbi) const {
  MDB_stat stat{};
  const int rc = ::mdb_stat(txn_.get(), dbi.handle_, &stat);
  if (rc != 0) return fail_mdb(where_, "cannot read", rc);
  return stat.ms_entries;
}

Result<Cursor> ReadTxn::cursor(Dbi dbi) const {
  MDB_cursor* cursor = nullptr;
  const int rc = ::mdb_cursor_open(txn_.get(), dbi.handle_, &cursor);
  if (rc != 0) return fail_mdb(where_, "cannot read", rc);
  return Cursor(cursor, where_);
}

Result<void> ReadTxn::keep_handles() {
  // mdb_dbi_open(): a handle is private to its transaction until that commits, reading ones too.
  const int rc = ::mdb_txn_commit(txn_.release());
  if (rc != 0) return fail_mdb(where_, "cannot read", rc);
  return {};
}

Result<Dbi> WriteTxn::create(const char* name) {
  MDB_dbi handle = 0;
  const int rc = ::mdb_dbi_open(txn_.get(), name, MDB_CREATE, &handle);
  if (rc != 0) return fail_mdb(where_, "cannot write", rc);
  return Dbi(handle);
}

Result<void> WriteTxn::put(Dbi dbi, std::string_view key, std::string_view value) {
  MDB_val k = to_val(key);
  MDB_val v = to_val(value);
  const int rc = ::mdb_put(txn_.get(), dbi.handle_, &k, &v, 0);
  if (rc != 0) return fail_mdb(where_, "cannot write", rc);
  return {};
}

Result<void> WriteTxn::append(Dbi dbi, std::string_view key, std::string_view value) {
  MDB_val k = to_val(key);
  MDB_val v = to_val(value);
  const int rc = ::mdb_put(txn_.get(), dbi.handle_, &k, &v, MDB_APPEND);
  if (rc != 0) return fail_mdb(where_, "cannot write", rc);
  return {};
}

Result<bool> WriteTxn::erase(Dbi dbi, std::string_view key) {
  if (key.empty() || key.size() > kMaxKey) return false;
  MDB_val k = to_val(key);
  const int rc = ::mdb_del(txn_.get(), dbi.handle_, &k, nullptr);
  if (rc == MDB_NOTFOUND) return false;
  if (rc != 0) return fail_mdb(where_, "cannot write", rc);
  return true;
}

Result<void> WriteTxn::clear(Dbi dbi) {
  const int rc = ::mdb_drop(txn_.get(), dbi.handle_, 0);
  if (rc != 0) return fail_mdb(where_, "cannot write", rc);
  return {};
}

Result<void> WriteTxn::commit() {
  const int rc = ::mdb_txn_commit(txn_.release());
  if (rc != 0) return fail_mdb(where_, "cannot write", rc);
  return {};
}

Env::Env(MDB_env* env, std::string path)
    : env_(env), path_(std::make_unique<const std::string>(std::move(path))) {}

Result<Env> Env::open(const std::string& path, const EnvOptions& options) {
  MDB_env* raw = nullptr;
  if (const int rc = ::mdb_env_create(&raw); rc != 0) return fail_mdb(path, "cannot open", rc);
  Env env(raw, path);
  // MDB_NOTLS: a reader's slot belongs to the transaction, not to the thread that began it.
  unsigned flags = MDB_NOSUBDIR | MDB_NOTLS;
  if (options.locking == Locking::none) flags |= MDB_NOLOCK;
  if (options.durability == Durability::unsynced) flags |= MDB_NOSYNC;
  int rc = ::mdb_env_set_maxdbs(raw, options.max_databases);
  if (rc == 0) rc = ::mdb_env_set_maxreaders(raw, options.max_readers);
  if (options.access == Access::read_only) {
    flags |= MDB_RDONLY;
  } else if (rc == 0) {
    rc = ::mdb_env_set_mapsize(raw, options.map_size);
  }
  if (rc == 0) rc = ::mdb_env_open(raw, path.c_str(), flags, options.mode);
  if (rc != 0) return fail_mdb(path, "cannot open", rc);
  return env;
}

Result<ReadTxn> Env::begin_read() const {
  MDB_txn* txn = nullptr;
  const int rc = ::mdb_txn_begin(env_.get(), nullptr, MDB_RDONLY, &txn);
  if (rc != 0) return fail_mdb(*path_, "cannot read", rc);
  return ReadTxn(txn, *path_);
}

Result<WriteTxn> Env::begin_write() {
  MDB_txn* txn = nullptr;
  const int rc = ::mdb_txn_begin(env_.get(), nullptr, 0, &txn);
  if (rc != 0) return fail_mdb(*path_, "cannot write", rc);
  return WriteTxn(txn, *path_);
}

Result<void> Env::grow(std::size_t map_size) {
  const int rc = ::mdb_env_set_mapsize(env_.get(), map_size);
  if (rc != 0) return fail_mdb(*path_, "cannot grow the map", rc);
  return {};
}

std::size_t Env::map_size() const {
  MDB_envinfo info{};
  return ::mdb_env_info(env_.get(), &info) == 0 ? info.me_mapsize : 0;
}

int Env::fd() const {
  int fd = -1;
  return ::mdb_env_get_fd(env_.get(), &fd) == 0 ? fd : -1;
}

}  // namespace heddle::store
