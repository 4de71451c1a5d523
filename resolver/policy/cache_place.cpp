// SPDX-License-Identifier: MIT
#include "resolver/policy/cache_place.hpp"

namespace heddle {
namespace {

constexpr const char* kShortCache = ".ldc";  // the same: a path no longer than /etc/ld.so.cache
constexpr const char* kLoaderCopy = "ld.so";

/// Writes `to` over each string `from` of `bytes`, NUL and all. False: there is none, or no room.
bool replace_string(std::string& bytes, const std::string& from, const std::string& to) {
  if (to.size() > from.size()) return false;
  const auto whole = '\0' + from + '\0';
  auto other = '\0' + to;
  other.resize(whole.size());
  bool any = false;
  for (auto at = bytes.find(whole); at != bytes.npos; at = bytes.find(whole, at + 1)) {
    bytes.replace(at, whole.size(), other);
    any = true;
  }
  return any;
}

}  // namespace

CachePlace find_cache_place(ContainerSide& inside, OsWorld& host, const GlibcFamily& family,
                            const GlibcChoice& glibc, const std::string& mount_point) {
  const bool of_host = glibc.taken == Side::host;
  const auto& loader = of_host ? family.loader : inside.loader();
  CachePlace out;
  out.path = loader.cache_path;
  out.target = out.path.empty() ? "" : inside.world().real_path(out.path);
  if (!out.target.empty()) return out;
  const auto origin =
      of_host ? family.files.at(family.loader.soname).path : inside.loader().interpreter;
  auto bytes = (of_host ? host : inside.world()).read(origin);
  if (!bytes) {
    out.conflict = bytes.error().message();
    return out;
  }
  const auto path = mount_point + "/" + kShortCache;
  if (out.path.empty() || !replace_string(*bytes, out.path, path)) {
    out.conflict =
        "the image has no ld.so.cache to put the host's libraries into, and in its ld.so " +
        origin + " there is no room for the path of another, " + path;
    return out;
  }
  out.why = "the image has no " + out.path + ": this copy of ld.so reads " + path;
  out.loader = {kLoaderCopy, std::move(*bytes), origin, of_host};
  out.path = path;
  return out;
}

}  // namespace heddle
