// SPDX-License-Identifier: MIT
#include "fsgen/registry/registry_client.hpp"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <thread>

#include "base/escape.hpp"
#include "fsgen/registry/authorities.hpp"
#include "fsgen/registry/credentials.hpp"
#include "fsgen/registry/sha256.hpp"

namespace heddle::registry {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr std::size_t kMostManifest = std::size_t{4} << 20;  // the specification's limit

const char* header(const HttpAnswer& answer, const char* name) {
  const auto found = answer.headers.find(name);
  return found == answer.headers.end() ? "" : found->second.c_str();
}

/// What a manifest says it is, else what the registry says, without parameters.
std::string media_type_of(const HttpAnswer& answer) {
  const auto json = Json::parse(answer.body, nullptr, false);
  if (json.is_object() && json.value("mediaType", Json()).is_string())
    return json["mediaType"].get<std::string>();
  std::string type = header(answer, "content-type");
  type = type.substr(0, type.find(';'));
  return type.empty() ? kManifestType : type;
}

/// `Bearer realm="...",service="..."`: one parameter's value.
std::string parameter(const std::string& challenge, const std::string& name) {
  const std::regex pattern(name + "=\"([^\"]*)\"", std::regex::icase);
  std::smatch found;
  return std::regex_search(challenge, found, pattern) ? found[1].str() : std::string();
}

std::string url_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~").find(c) != std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", byte);
  }
  return out;
}

/// "sha256-<hex>", the tag that stands in for the referrers API.
std::string fallback_tag(std::string digest) {
  digest[6] = '-';
  return digest;
}

/// docker-registry answers 500 to who asks for a tag while another writes it (2.8.2, file system
/// storage: 5 of 32 at once); others say that they are busy.
bool is_busy(long status) { return status == 429 || (status >= 500 && status <= 504); }
constexpr std::chrono::milliseconds kPauses[] = {100ms, 300ms};

/// Of many who add to one index, each must see its own line there in the end.
constexpr int kMostRounds = 20;

/// Whether an http address is this node's.
bool is_here(const std::string& url) {
  if (!url.starts_with("http://")) return false;
  Reference at;
  at.host = url.substr(7, url.find('/', 7) - 7);
  return at.host.find('@') == at.host.npos && at.scheme() == "http";
}

}  // namespace

RegistryClient::RegistryClient(Reference at) : RegistryClient(at, find_authorities(at.host)) {}

RegistryClient::RegistryClient(Reference at, std::string authorities)
    : at_(std::move(at)),
      scheme_(authorities.empty() ? at_.scheme() : "https"),
      http_(std::move(authorities)) {}

std::string RegistryClient::url(const std::string& rest) const {
  return scheme_ + "://" + at_.host + "/v2/" + at_.repository + "/" + rest;
}

tl::unexpected<Error> RegistryClient::refused(const HttpAnswer& answer,
                                              const std::string& what) const {
  const auto name = at_.host + "/" + at_.repository;
  std::string reason = fmt::format("HTTP status {}", answer.status);
  const auto json = Json::parse(answer.body, nullptr, false);
  if (json.is_object() && json.contains("errors") && json["errors"].is_array() &&
      !json["errors"].empty() && json["errors"][0].is_object() &&
      json["errors"][0].value("message", Json()).is_string())
    reason += ", " + escape_for_terminal(json["errors"][0]["message"].get<std::string>());
  if (answer.status == 401 || answer.status == 403)
    return fail(Error::with_code(EACCES, name, what, reason, "podman login " + at_.host));
  return fail(Error::with_code(answer.status == 404 ? ENOENT : EPROTO, name, what, reason));
}

Result<void> RegistryClient::authorize(const std::string& challenge, const char* actions) {
  const auto found = find_credentials(at_.host, at_.repository);
  const bool basic = challenge.starts_with("Basic") || challenge.starts_with("basic");
  if (basic) {
    if (found) {
      user_ = found->user;
      password_ = found->password;
    }
    return {};
  }
  const auto realm = parameter(challenge, "realm");
  if (realm.empty()) return {};
  if (!realm.starts_with("https://") && !(scheme_ == "http" && is_here(realm)))
    return fail(at_.host, "cannot log in", "the registry wants the password sent without TLS");
  HttpRequest request;
  request.url =
      fmt::format("{}{}service={}&scope={}", realm, realm.find('?') == realm.npos ? '?' : '&',
                  url_escaped(parameter(challenge, "service")),
                  url_escaped(fmt::format("repository:{}:{}", at_.repository, actions)));
  std::string form;
  if (found && !found->identity_token.empty()) {  // OAuth2, as docker's token specification has it
    form = fmt::format(
        "grant_type=refresh_token&client_id=heddle&service={}&scope={}&refresh_token={}",
        url_escaped(parameter(challenge, "service")),
        url_escaped(fmt::format("repository:{}:{}", at_.repository, actions)),
        url_escaped(found->identity_token));
    request.method = "POST";
    request.url = realm;
    request.body = &form;
  } else if (found) {
    request.user = found->user;
    request.password = found->password;
  }
  const auto answer = http_.send(request);
  if (!answer) return fail(answer.error());
  if (answer->status != 200) return refused(*answer, "cannot log in");
  const auto json = Json::parse(answer->body, nullptr, false);
  for (const char* key : {"token", "access_token"})
    if (json.is_object() && json.contains(key) && json[key].is_string())
      bearer_ = json[key].get<std::string>();
  if (bearer_.empty() || bearer_.find_first_of("\r\n") != bearer_.npos)
    return fail(at_.host, "cannot log in", "the registry's answer holds no token");
  return {};
}

Result<HttpAnswer> RegistryClient::send(HttpRequest request, const char* actions) {
  bool authorized = false;
  for (std::size_t busy = 0;;) {
    auto now = request;
    if (!bearer_.empty()) now.headers.push_back("Authorization: Bearer " + bearer_);
    now.user = user_;
    now.password = password_;
    auto answer = http_.send(now);
    if (!answer) return answer;
    if (is_busy(answer->status) && busy < std::size(kPauses)) {
      std::this_thread::sleep_for(kPauses[busy++]);
      continue;
    }
    if (answer->status != 401 || authorized) return answer;
    authorized = true;
    bearer_.clear();
    if (auto done = authorize(header(*answer, "www-authenticate"), actions); !done)
      return fail(std::move(done.error()));
    if (bearer_.empty() && user_.empty()) return answer;
  }
}

Result<RegistryClient::Manifest> RegistryClient::get_manifest(const std::string& version) {
  HttpRequest request;
  request.url = url("manifests/" + version);
  request.most_bytes = kMostManifest;
  request.headers = {fmt::format("Accept: {}, {}, {}, {}", kManifestType, kIndexType,
                                 "application/vnd.docker.distribution.manifest.v2+json",
                                 "application/vnd.docker.distribution.manifest.list.v2+json")};
  auto answer = send(std::move(request), "pull");
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status != 200) return refused(*answer, "cannot pull");
  Manifest out;
  out.descriptor = {media_type_of(*answer), sha256_digest(answer->body), answer->body.size()};
  const std::string told = header(*answer, "docker-content-digest");
  if ((is_digest(version) && version != out.descriptor.digest) ||
      (is_digest(told) && told != out.descriptor.digest))
    return fail(Error::with_code(EBADMSG, at_.text(), "cannot pull",
                                 "the manifest is not what its digest says"));
  out.text = std::move(answer->body);
  return out;
}

Result<std::string> RegistryClient::get_blob(const std::string& digest, std::size_t size) {
  HttpRequest request;
  request.url = url("blobs/" + digest);
  request.most_bytes = size;
  auto answer = send(std::move(request), "pull");
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status != 200) return refused(*answer, "cannot pull");
  if (answer->body.size() != size)
    return fail(Error::with_code(EBADMSG, at_.text(), "cannot pull", "the blob is truncated"));
  if (sha256_digest(answer->body) != digest)
    return fail(Error::with_code(EBADMSG, at_.text(), "cannot pull",
                                 "the blob is not what its digest says"));
  return std::move(answer->body);
}

Result<Descriptor> RegistryClient::put_blob(const std::string& content,
                                            const std::string& media_type) {
  const Descriptor out{media_type, sha256_digest(content), content.size()};
  HttpRequest head;
  head.method = "HEAD";
  head.url = url("blobs/" + out.digest);
  auto answer = send(std::move(head), "pull,push");
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status == 200) return out;
  static const std::string kNothing;
  HttpRequest start;
  start.method = "POST";
  start.url = url("blobs/uploads/");
  start.body = &kNothing;
  answer = send(std::move(start), "pull,push");
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status != 202) return refused(*answer, "cannot push");
  std::string location = header(*answer, "location");
  if (location.starts_with('/')) location = scheme_ + "://" + at_.host + location;
  // Our credentials go along: to this registry only.
  if (!location.starts_with(scheme_ + "://" + at_.host + "/"))
    return fail(at_.text(), "cannot push", "the registry sends the upload to another host");
  HttpRequest upload;
  upload.method = "PUT";
  upload.url =
      location + (location.find('?') == location.npos ? "?" : "&") + "digest=" + out.digest;
  upload.headers = {"Content-Type: application/octet-stream"};
  upload.body = &content;
  answer = send(std::move(upload), "pull,push");
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status != 201) return refused(*answer, "cannot push");
  return out;
}

Result<Descriptor> RegistryClient::put_manifest(const std::string& text,
                                                const std::string& media_type,
                                                const std::string& version,
                                                const std::string& artifact_type,
                                                const std::string& subject) {
  const Descriptor out{media_type, sha256_digest(text), text.size()};
  HttpRequest request;
  request.method = "PUT";
  request.url = url("manifests/" + (version.empty() ? out.digest : version));
  request.headers = {"Content-Type: " + media_type};
  request.body = &text;
  const auto answer = send(std::move(request), "pull,push");
  if (!answer) return fail(answer.error());
  if (answer->status != 201) return refused(*answer, "cannot push");
  // A registry with the referrers API says that it took note (distribution spec 1.1).
  if (!subject.empty() && *header(*answer, "oci-subject") == '\0')
    if (auto done = add_to_fallback(subject, out, artifact_type); !done)
      return fail(std::move(done.error()));
  return out;
}

Result<std::string> RegistryClient::referrers_index(const std::string& subject) {
  HttpRequest request;
  request.url = url("referrers/" + subject);
  request.headers = {fmt::format("Accept: {}", kIndexType)};
  auto answer = send(std::move(request), "pull");
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status == 200) return std::move(answer->body);
  auto tagged = get_manifest(fallback_tag(subject));
  if (!tagged) return fail(std::move(tagged.error()));
  return std::move(tagged->text);
}

Result<bool> RegistryClient::add_once(const std::string& tag, const Descriptor& one,
                                      const std::string& artifact_type) {
  Json index = {{"schemaVersion", 2}, {"mediaType", kIndexType}, {"manifests", Json::array()}};
  if (auto old = get_manifest(tag)) {
    auto json = Json::parse(old->text, nullptr, false);
    if (json.is_object() && json.contains("manifests") && json["manifests"].is_array())
      index = std::move(json);
  } else if (old.error().code() != ENOENT) {
    return fail(std::move(old.error()));
  }
  for (const auto& known : index["manifests"])
    if (known.is_object() && known.value("digest", Json()) == one.digest) return true;
  index["manifests"].push_back({{"mediaType", one.media_type},
                                {"digest", one.digest},
                                {"size", one.size},
                                {"artifactType", artifact_type}});
  auto done = put_manifest(index.dump(), kIndexType, tag, "", "");
  if (!done) return fail(std::move(done.error()));
  return false;
}

Result<void> RegistryClient::add_to_fallback(const std::string& subject, const Descriptor& one,
                                             const std::string& artifact_type) {
  // Nothing locks a tag: another's index may have come between, so it is looked at once more,
  // after a while that differs from theirs.
  std::mt19937 random{std::random_device()()};
  for (int round = 1; round <= kMostRounds; ++round) {
    const auto there = add_once(fallback_tag(subject), one, artifact_type);
    if (!there) return fail(there.error());
    if (*there) return {};
    std::this_thread::sleep_for(
        std::chrono::milliseconds(random() % (20U * static_cast<unsigned>(round))));
  }
  return fail(at_.text(), "cannot attach",
              "others keep changing " + fallback_tag(subject) + ": try again");
}

Result<std::optional<std::string>> RegistryClient::find_referrer(const std::string& subject,
                                                                 const std::string& artifact_type) {
  const auto text = referrers_index(subject);
  if (!text && text.error().code() == ENOENT) return std::nullopt;
  if (!text) return fail(text.error());
  const auto json = Json::parse(*text, nullptr, false);
  std::optional<std::string> found;
  if (json.is_object() && json.contains("manifests") && json["manifests"].is_array())
    for (const auto& one : json["manifests"])
      if (one.is_object() && one.value("artifactType", Json()) == artifact_type &&
          one.value("digest", Json()).is_string() && is_digest(one["digest"].get<std::string>()))
        found = one["digest"].get<std::string>();
  return found;
}

}  // namespace heddle::registry
