// SPDX-License-Identifier: MIT
#include "base/content_hash.hpp"

// SHA256_Init() and its companions of OpenSSL 1.0, and not EVP or SHA256(), which calls it: they
// take 20 KiB in a static program instead of 4 MiB, and never read openssl.cnf, which may name code
// to load. They use the CPU's SHA instructions (1.1 GB/s measured).
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <unistd.h>

#include <memory>

namespace heddle {
namespace {

ContentHash finish(SHA256_CTX& state) {
  ContentHash out;
  static_assert(SHA256_DIGEST_LENGTH == sizeof(out.bytes));
  ::SHA256_Final(out.bytes.data(), &state);
  return out;
}

}  // namespace

std::string ContentHash::hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (std::uint8_t b : bytes) out += {kHex[b >> 4], kHex[b & 15]};
  return out;
}

ContentHash hash_bytes(std::string_view data) {
  SHA256_CTX state;
  ::SHA256_Init(&state);
  ::SHA256_Update(&state, data.data(), data.size());
  return finish(state);
}

Result<ContentHash> hash_file(int fd, const std::string& name,
                              const std::function<void()>& moves_on) {
  SHA256_CTX state;
  ::SHA256_Init(&state);
  constexpr std::size_t room = std::size_t{1} << 18;
  const auto buffer = std::make_unique_for_overwrite<char[]>(room);  // touched only as needed
  for (off_t offset = 0;;) {
    const ssize_t n = ::pread(fd, buffer.get(), room, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(name, "cannot read");
    if (n == 0) break;
    if (moves_on) moves_on();
    ::SHA256_Update(&state, buffer.get(), static_cast<std::size_t>(n));
    offset += n;
  }
  return finish(state);
}

}  // namespace heddle
