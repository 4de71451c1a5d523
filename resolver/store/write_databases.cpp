// SPDX-License-Identifier: MIT
#include <lmdb.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "base/fd.hpp"
#include "resolver/store/databases.hpp"

namespace heddle::store {
namespace {

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

Result<std::string> write_databases(const Databases& databases) {
  // In memory: LMDB calls any short write EIO, whatever the reason.
  const Fd memory(::memfd_create("heddle-map", MFD_CLOEXEC));
  if (!memory) return fail_errno("", "cannot write");
  MDB_env* raw = nullptr;
  int rc = ::mdb_env_create(&raw);
  const Env env(raw, &::mdb_env_close);
  // A power of two: the size is written into the file, and must not vary with trifles.
  std::size_t map_size = std::bit_ceil(std::max<std::size_t>(1U << 20, 2 * payload(databases)));
  const auto path = "/proc/self/fd/" + std::to_string(memory.get());
  if (rc == 0) rc = open_env(env.get(), path, databases.size(), map_size);
  if (rc == 0) rc = write_all(env.get(), databases);
  // Values just above half a page waste the other half: twice the payload may not do.
  while (rc == MDB_MAP_FULL) {
    rc = ::mdb_env_set_mapsize(env.get(), map_size *= 2);
    if (rc == 0) rc = write_all(env.get(), databases);
  }
  if (rc == 0) return read_all(memory.get(), "");
  // In memory it is RLIMIT_FSIZE that cuts a write short.
  const int code = rc == EIO               ? EFBIG
                   : rc > 0                ? rc
                   : rc == MDB_KEYEXIST    ? EEXIST
                   : rc == MDB_BAD_VALSIZE ? EINVAL
                                           : EIO;
  return fail(Error::with_code(code, "", "cannot write", ::mdb_strerror(rc)));
}

}  // namespace heddle::store
