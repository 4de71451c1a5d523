// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "ship/registry/reference.hpp"

namespace heddle::registry {

using Json = nlohmann::ordered_json;

/// A manifest or blob as others name it (OCI image spec, descriptor).
struct Descriptor {
  std::string media_type;
  std::string digest;
  std::uint64_t size = 0;
};

/// JSON that somebody else wrote; discarded when it is none, or nested deeper than 64: what reads
/// and writes it recurses.
Json parse_json(std::string_view text);
/// The text `key` of an object, the elements of the list `key`; empty: there is none.
std::string text_member(const Json& json, const char* key);
const Json& list_member(const Json& json, const char* key);

class Http;
struct HttpRequest;
struct HttpAnswer;

/// One registry's OCI distribution API. Everything that comes is held against its digest.
///
/// Credentials and tokens go to the registry's own host; what it asks for in a challenge counts
/// only when it answered itself. A redirection is followed without them (a storage that answers 401
/// and names a realm of its own gets nothing: the class of CVE-2020-15157).
class RegistryClient {
 public:
  /// `at`: whose host and repository all calls are about.
  explicit RegistryClient(Reference at);
  ~RegistryClient();

  struct Manifest {
    Descriptor descriptor;
    std::string text;
  };
  /// The manifest behind a tag or digest. ENOENT: there is none.
  Result<Manifest> get_manifest(const std::string& version);
  /// Writes it to `file`, which is empty. Result: that file, open for reading, at its start.
  Result<Fd> get_blob(const Descriptor& blob, int file);
  /// Uploads unless it is there.
  Result<Descriptor> put_blob(std::string_view content, const std::string& media_type);
  /// `version`: a tag, or the manifest's own digest. `subject` set: the manifest refers to that
  /// one, and where the registry has no referrers API, its fallback tag is kept up.
  Result<Descriptor> put_manifest(const std::string& text, const std::string& media_type,
                                  const std::string& version, const std::string& artifact_type,
                                  const std::string& subject);
  /// The newest manifest of `artifact_type` that refers to `subject`; nullopt: none.
  Result<std::optional<std::string>> find_referrer(const std::string& subject,
                                                   const std::string& artifact_type);

 private:
  std::string url(const std::string& rest) const;
  bool is_own(const std::string& url) const;
  /// With credentials, if it goes to this registry.
  Result<HttpAnswer> send_once(HttpRequest request);
  /// Sends, and once more with what the registry asks for when it says 401.
  Result<HttpAnswer> send(HttpRequest request, const char* actions);
  Result<HttpAnswer> follow(HttpRequest request, HttpAnswer answer);
  Result<void> authorize(const std::string& challenge, const char* actions);
  Result<std::string> referrers_index(const std::string& subject);
  /// Result: whether it was there already.
  Result<bool> add_once(const std::string& tag, const Descriptor& one,
                        const std::string& artifact_type);
  Result<void> add_to_fallback(const std::string& subject, const Descriptor& one,
                               const std::string& artifact_type);
  tl::unexpected<Error> refused(const HttpAnswer& answer, const std::string& what) const;
  tl::unexpected<Error> damaged(const char* reason) const;

  Reference at_;
  std::string scheme_;
  std::unique_ptr<Http> http_;
  std::string authorization_;  ///< the header's value; empty: none
};

inline constexpr const char* kManifestType = "application/vnd.oci.image.manifest.v1+json";
inline constexpr const char* kIndexType = "application/vnd.oci.image.index.v1+json";
/// The specification's limit.
inline constexpr std::size_t kMostManifest = std::size_t{4} << 20;

}  // namespace heddle::registry
