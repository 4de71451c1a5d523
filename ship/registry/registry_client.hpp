// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "ship/registry/registries.hpp"

namespace heddle::registry {

using Json = nlohmann::ordered_json;

/// Names a manifest or blob (OCI image spec, descriptor).
struct Descriptor {
  std::string media_type;
  std::string digest;
  std::uint64_t size = 0;
};

/// Parses untrusted JSON. Discarded: not JSON, or nested deeper than 64 (nlohmann-json recurses).
Json parse_json(std::string_view text);
/// Whether a registry could not be reached, by the code of a failure. Only then may a cached tag
/// stand for it.
inline bool is_unreachable(int code) { return code == EHOSTUNREACH || code == ECONNREFUSED; }
/// The string or list `key` of an object; empty: there is none.
std::string text_member(const Json& json, const char* key);
const Json& list_member(const Json& json, const char* key);

class Http;
struct HttpRequest;
struct HttpAnswer;

/// One registry's OCI distribution API. Manifests and blobs are checked against their digests.
///
/// Credentials and tokens are sent to the registry's own host only, and only its own challenges are
/// answered. Redirections are followed without them, so a storage host that answers 401 with a
/// realm of its own gets nothing (the class of CVE-2020-15157).
class RegistryClient {
 public:
  /// All calls concern the host and repository of `at`, as registries.conf leads there. Throws
  /// Error when it is blocked.
  explicit RegistryClient(const Reference& at);
  ~RegistryClient();

  struct Manifest {
    Descriptor descriptor;
    std::string text;
  };
  /// The manifest behind a tag or digest. ENOENT: there is none. `what` is said of a refusal.
  Result<Manifest> get_manifest(const std::string& version, const char* what = "cannot pull");
  /// Writes it to `file`, which is empty, and is called `name` in messages if that is given.
  /// Result: that file, open for reading, at offset 0.
  Result<Fd> get_blob(const Descriptor& blob, int file, const std::string& name = {});
  /// Uploads unless the registry has it.
  Result<Descriptor> put_blob(std::string_view content, const std::string& media_type);
  /// `version`: a tag; empty: the manifest's digest. `subject` not empty: the manifest refers to
  /// it; where the registry has no referrers API, the fallback tag is updated.
  Result<Descriptor> put_manifest(const std::string& text, const std::string& media_type,
                                  const std::string& version, const std::string& artifact_type,
                                  const std::string& subject);
  /// The newest manifest of `artifact_type` that refers to `subject`; nullopt: none.
  Result<std::optional<std::string>> find_referrer(const std::string& subject,
                                                   const std::string& artifact_type);

 private:
  std::string url(const std::string& rest) const;
  bool is_own(const std::string& url) const;
  bool is_safe(const std::string& url) const;
  /// With the authorization, if it goes to this registry.
  Result<HttpAnswer> send_once(HttpRequest request);
  /// Sends, and after a 401 once more with the authorization that the registry asks for.
  Result<HttpAnswer> send(HttpRequest request, const char* actions);
  Result<HttpAnswer> follow(HttpRequest request, HttpAnswer answer);
  Result<void> authorize(const std::string& challenge, const char* actions);
  Result<std::string> referrers_index(const std::string& subject);
  /// Result: whether the index already listed it.
  Result<bool> add_once(const std::string& tag, const Descriptor& one,
                        const std::string& artifact_type);
  Result<void> add_to_fallback(const std::string& subject, const Descriptor& one,
                               const std::string& artifact_type);
  tl::unexpected<Error> refused(const HttpAnswer& answer, const std::string& what,
                                const std::string& version = {}) const;
  tl::unexpected<Error> damaged(const char* reason) const;

  Location location_;
  const Reference& at_ = location_.at;
  std::string scheme_;         ///< `http` when an insecure registry has no TLS
  bool may_be_plain_ = false;  ///< an insecure registry that has not answered yet
  std::unique_ptr<Http> http_;
  std::string authorization_;  ///< the header's value; empty: none
};

inline constexpr const char* kManifestType = "application/vnd.oci.image.manifest.v1+json";
inline constexpr const char* kIndexType = "application/vnd.oci.image.index.v1+json";
/// The specification's limit.
inline constexpr std::size_t kMostManifest = std::size_t{4} << 20;

}  // namespace heddle::registry
