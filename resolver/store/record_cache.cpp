// SPDX-License-Identifier: MIT
#include "resolver/store/record_cache.hpp"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "base/fd.hpp"

namespace heddle::store {
namespace {

using Env = std::unique_ptr<MDB_env, decltype(&::mdb_env_close)>;
using Txn = std::unique_ptr<MDB_txn, decltype(&::mdb_txn_abort)>;

MDB_val to_val(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

Txn begin(MDB_env* env, unsigned flags) {
  MDB_txn* txn = nullptr;
  if (::mdb_txn_begin(env, nullptr, flags, &txn) != 0) txn = nullptr;
  return {txn, &::mdb_txn_abort};
}

/// The file, for its checks and its lock. One that is not this user's own regular file is removed.
Fd open_own(const std::string& path) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto file = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat st {};
    if (file && ::fstat(file->get(), &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == ::geteuid() &&
        (st.st_mode & 022) == 0)
      return std::move(*file);
    if (::unlink(path.c_str()) != 0) break;
  }
  return {};
}

/// LMDB maps its lock file and writes there: a hole of it on a full disk would be a SIGBUS.
bool allocate_locks(const std::string& path) {
  constexpr off_t kSize = 8192;  // of LMDB's default number of readers
  const Fd file = open_own(path + "-lock");
  return file && ::posix_fallocate(file.get(), 0, kSize) == 0;
}

}  // namespace

struct RecordCache::Handles {
  Fd file;
  Env env{nullptr, &::mdb_env_close};
  MDB_dbi dbi = 0;

  bool open(const std::string& path, std::size_t limit) {
    file = open_own(path);
    MDB_env* raw = nullptr;
    if (!file || !allocate_locks(path) || ::mdb_env_create(&raw) != 0) return false;
    env.reset(raw);
    if (::mdb_env_set_mapsize(raw, limit) != 0 ||
        ::mdb_env_open(raw, path.c_str(), MDB_NOSUBDIR | MDB_NOSYNC | MDB_NOTLS | MDB_NORDAHEAD,
                       0600) != 0)
      return false;
    // A file that was cut short would be a SIGBUS at its first missing page.
    MDB_envinfo info{};
    MDB_stat stat{};
    struct stat st {};
    if (::mdb_env_info(raw, &info) != 0 || ::mdb_env_stat(raw, &stat) != 0 ||
        ::fstat(file.get(), &st) != 0 ||
        static_cast<std::size_t>(st.st_size) < (info.me_last_pgno + 1) * stat.ms_psize)
      return false;
    const Txn txn = begin(raw, MDB_RDONLY);
    return txn && ::mdb_dbi_open(txn.get(), nullptr, 0, &dbi) == 0;
  }
};

RecordCache::RecordCache(std::unique_ptr<Handles> handles) : handles_(std::move(handles)) {}
RecordCache::~RecordCache() = default;

std::shared_ptr<RecordCache> RecordCache::open(const std::string& path, std::size_t limit) {
  // LMDB's locks end when the process closes the file for the first time (fcntl(2)).
  static std::map<std::string, std::weak_ptr<RecordCache>> opened;
  if (auto known = opened[path].lock()) return known;
  // Going beyond RLIMIT_FSIZE is SIGXFSZ, not an errno.
  rlimit most{};
  if (::getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur < limit) return nullptr;
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto handles = std::make_unique<Handles>();
    if (handles->open(path, limit)) {
      std::shared_ptr<RecordCache> out(new RecordCache(std::move(handles)));
      opened[path] = out;
      return out;
    }
    handles.reset();
    (void)::unlink(path.c_str());
    (void)::unlink((path + "-lock").c_str());
  }
  return nullptr;
}

std::optional<std::string> RecordCache::find(std::string_view key) const {
  const Txn txn = begin(handles_->env.get(), MDB_RDONLY);
  MDB_val k = to_val(key);
  MDB_val value{};
  if (!txn || ::mdb_get(txn.get(), handles_->dbi, &k, &value) != 0) return std::nullopt;
  return std::string(static_cast<const char*>(value.mv_data), value.mv_size);
}

bool RecordCache::add(const std::vector<Record>& records) {
  // LMDB would wait for its writer, even for one that was stopped.
  if (::flock(handles_->file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  int code = MDB_MAP_FULL;
  for (int attempt = 0; attempt < 2 && code == MDB_MAP_FULL; ++attempt) {
    if (attempt > 0) {
      Txn drop = begin(handles_->env.get(), 0);
      if (!drop || ::mdb_drop(drop.get(), handles_->dbi, 0) != 0 ||
          ::mdb_txn_commit(drop.release()) != 0)
        break;
    }
    Txn txn = begin(handles_->env.get(), 0);
    code = txn ? 0 : EIO;
    for (const auto& [key, bytes] : records) {
      if (code != 0) break;
      MDB_val k = to_val(key);
      MDB_val value = to_val(bytes);
      code = ::mdb_put(txn.get(), handles_->dbi, &k, &value, 0);
    }
    if (code == 0) code = ::mdb_txn_commit(txn.release());
  }
  (void)::flock(handles_->file.get(), LOCK_UN);
  return code == 0;
}

}  // namespace heddle::store
