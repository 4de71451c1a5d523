// SPDX-License-Identifier: MIT
#include "fsgen/registry/sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/result.hpp"

namespace heddle::registry {

std::string sha256_digest(std::string_view data) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(data.data(), data.size(), bytes, &size, EVP_sha256(), nullptr) != 1)
    throw Error("libcrypto", "cannot make a SHA-256");
  std::string out = "sha256:";
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

}  // namespace heddle::registry
