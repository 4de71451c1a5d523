// SPDX-License-Identifier: MIT
#include "base/content_hash.hpp"

// libcrypto's SHA256_*() of 1.0 and not its EVP interface: those are 20 KiB of a static program,
// not four MiB, and never read openssl.cnf or OPENSSL_CONF, which may name code to load. They use
// the CPU's SHA instructions (1.1 GB/s measured).
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <unistd.h>

#include <memory>

namespace heddle {
namespace {

class Sha256 {
 public:
  Sha256() { ::SHA256_Init(&state_); }
  void add(const char* data, std::size_t size) { ::SHA256_Update(&state_, data, size); }
  ContentHash end() {
    ContentHash out;
    static_assert(SHA256_DIGEST_LENGTH == sizeof(out.bytes));
    ::SHA256_Final(out.bytes.data(), &state_);
    return out;
  }

 private:
  SHA256_CTX state_;
};

}  // namespace

std::string ContentHash::hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (std::uint8_t b : bytes) out += {kHex[b >> 4], kHex[b & 15]};
  return out;
}

ContentHash hash_bytes(std::string_view data) {
  Sha256 hash;
  hash.add(data.data(), data.size());
  return hash.end();
}

Result<ContentHash> hash_file(int fd, const std::string& name,
                              const std::function<void()>& moves_on) {
  Sha256 hash;
  constexpr std::size_t room = std::size_t{1} << 18;
  const auto buffer = std::make_unique_for_overwrite<char[]>(room);  // small files touch little
  for (off_t offset = 0;;) {
    const ssize_t n = ::pread(fd, buffer.get(), room, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(name, "cannot read");
    if (n == 0) break;
    if (moves_on) moves_on();
    hash.add(buffer.get(), static_cast<std::size_t>(n));
    offset += n;
  }
  return hash.end();
}

}  // namespace heddle
