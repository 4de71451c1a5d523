// SPDX-License-Identifier: MIT
#include "ship/registry/sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <vector>

namespace heddle::registry {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

void insist(int status) {
  if (status != 1) throw Error("libcrypto", "cannot make a SHA-256");
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const noexcept { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  insist(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::add(std::string_view data) {
  insist(EVP_DigestUpdate(context_.get(), data.data(), data.size()));
}

std::string Sha256::digest() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  insist(EVP_DigestFinal_ex(context_.get(), bytes, &size));
  std::string out = "sha256:";
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

std::string sha256_digest(std::string_view data) {
  Sha256 sum;
  sum.add(data);
  return sum.digest();
}

Result<std::string> sha256_of_file(int fd, const std::string& name) {
  Sha256 sum;
  std::vector<char> piece(kPiece);
  for (off_t at = 0;;) {
    const auto got = ::pread(fd, piece.data(), piece.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(name, "cannot read");
    if (got == 0) return sum.digest();
    sum.add({piece.data(), static_cast<std::size_t>(got)});
    at += got;
  }
}

}  // namespace heddle::registry
