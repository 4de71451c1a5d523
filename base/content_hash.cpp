// SPDX-License-Identifier: MIT
#include "base/content_hash.hpp"

#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <memory>

namespace heddle {
namespace {

ContentHash canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical_form;
  XXH128_canonicalFromHash(&canonical_form, hash);
  ContentHash out;
  static_assert(sizeof(canonical_form.digest) == sizeof(out.bytes));
  std::memcpy(out.bytes.data(), canonical_form.digest, out.bytes.size());
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
  return canonical(XXH3_128bits(data.data(), data.size()));
}

Result<ContentHash> hash_file(int fd, const std::string& name, const EditBytes& edit) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  if (!state || XXH3_128bits_reset(state.get()) != XXH_OK)
    return fail_errno(name, "cannot hash", ENOMEM);
  constexpr std::size_t room = std::size_t{1} << 18;
  const auto buffer = std::make_unique_for_overwrite<char[]>(room);  // small files touch little
  for (off_t offset = 0;;) {
    const ssize_t n = ::pread(fd, buffer.get(), room, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(name, "cannot read");
    if (n == 0) break;
    if (edit) edit({buffer.get(), static_cast<std::size_t>(n)}, static_cast<std::uint64_t>(offset));
    XXH3_128bits_update(state.get(), buffer.get(), static_cast<std::size_t>(n));
    offset += n;
  }
  return canonical(XXH3_128bits_digest(state.get()));
}

}  // namespace heddle
