// SPDX-License-Identifier: MIT
#include "resolver/store/record_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/coder.hpp"
#include "base/content_hash.hpp"

namespace heddle::store {
namespace {

constexpr std::size_t kSum = sizeof(Checksum);
constexpr std::size_t kSize = sizeof(std::uint32_t);

/// The length-prefixed text at the front of `rest`, which is cut off there; nullopt: it is longer.
std::optional<std::string_view> take_text(std::string_view& rest) {
  std::uint32_t size = 0;
  Decoder decoder(rest.substr(0, kSize));
  decoder(size);
  if (!decoder.good() || size > rest.size() - kSize) return std::nullopt;
  const auto text = rest.substr(kSize, size);
  rest.remove_prefix(kSize + size);
  return text;
}

/// The file; one that is not this user's own regular file is removed.
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

}  // namespace

std::optional<RecordCache> RecordCache::open(const std::string& path, std::size_t limit) {
  // Going beyond RLIMIT_FSIZE is SIGXFSZ, not an errno.
  rlimit most{};
  if (::getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur < limit) return std::nullopt;
  auto file = open_own(path);
  if (!file) return std::nullopt;
  return RecordCache(std::move(file), limit);
}

void RecordCache::read() {
  records_.clear();
  (void)::lseek(file_.get(), 0, SEEK_SET);
  bytes_ = read_all(file_.get(), "", limit_).value_or("");
  std::string_view rest = bytes_;
  while (rest.size() > kSum) {
    Checksum sum;
    Decoder(rest.substr(0, kSum))(sum.bytes);
    auto behind = rest.substr(kSum);
    const auto key = take_text(behind);
    const auto value = key ? take_text(behind) : std::nullopt;
    if (!value || checksum_of(rest.substr(kSum, rest.size() - kSum - behind.size())) != sum) break;
    records_.insert_or_assign(*key, *value);
    rest = behind;
  }
  bytes_.resize(bytes_.size() - rest.size());  // in place: the views stay valid
}

std::optional<std::string_view> RecordCache::find(std::string_view key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? std::nullopt : std::optional(found->second);
}

bool RecordCache::add(const std::vector<Record>& records) {
  // Not waiting for a writer that was stopped.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) return false;
  read();  // others have added, perhaps the same
  std::string more;
  for (const auto& [key, value] : records) {
    if (records_.contains(key)) continue;
    Encoder coder;
    coder(key, value);
    const auto body = coder.take();
    Encoder sum;
    sum(checksum_of(body).bytes);
    more += sum.take() + body;
  }
  bool good = more.size() <= limit_;
  if (good) {
    const auto end = static_cast<off_t>(bytes_.size() + more.size() > limit_ ? 0 : bytes_.size());
    good = ::ftruncate(file_.get(), end) == 0 && ::lseek(file_.get(), end, SEEK_SET) == end &&
           write_all(file_.get(), more, "");
    if (!good) (void)::ftruncate(file_.get(), end);
    read();
  }
  (void)::flock(file_.get(), LOCK_UN);
  return good;
}

}  // namespace heddle::store
