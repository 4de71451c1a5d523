// SPDX-License-Identifier: MIT
#include "ship/registry/registry_client.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/backoff.hpp"
#include "base/content_hash.hpp"
#include "base/escape.hpp"
#include "base/try.hpp"
#include "ship/registry/credentials.hpp"

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
  const auto json = parse_json(answer.body);
  if (json.is_object() && json.value("mediaType", Json()).is_string())
    return json["mediaType"].get<std::string>();
  std::string type = header(answer, "content-type");
  type = type.substr(0, type.find(';'));
  return type.empty() ? kManifestType : type;
}

bool equal_ignoring_case(std::string_view one, std::string_view other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  });
}

/// Of a header's lines the first challenge of the scheme `name`; empty: none.
std::string_view challenge_of(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const auto line = header.substr(0, header.find('\n'));
    header.remove_prefix(std::min(header.size(), line.size() + 1));
    const auto space = std::min(line.find(' '), line.size());
    if (equal_ignoring_case(line.substr(0, space), name)) return line;
  }
  return {};
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
constexpr int kMostBusy = 3;

/// Of many who add to one index, each must see its own line there in the end.
constexpr unsigned kMostRounds = 20;

/// Whether an URL may be asked at all: by TLS, or by http on this node.
bool is_safe(const std::string& url) {
  Reference at;
  at.host = host_of(url);
  return !at.host.empty() && (url.starts_with("https://") || at.scheme() == "http");
}

/// `name`'s value in a challenge (RFC 9110, 11.6.1: `Bearer realm="...",service="..."`); empty:
/// none. One pass, whatever the text.
std::string challenge_parameter(std::string_view challenge, std::string_view name) {
  std::size_t at = challenge.find(' ');
  while (at < challenge.size()) {
    at = challenge.find_first_not_of(" \t,", at);
    if (at == challenge.npos) break;
    const auto end = challenge.find_first_of("= \t,", at);
    if (end == challenge.npos || challenge[end] != '=') break;  // another challenge begins
    const auto key = challenge.substr(at, end - at);
    std::string value;
    at = end + 1;
    if (at < challenge.size() && challenge[at] == '"') {
      for (++at; at < challenge.size() && challenge[at] != '"'; ++at) {
        if (challenge[at] == '\\' && at + 1 < challenge.size()) ++at;
        value += challenge[at];
      }
      ++at;
    } else {
      const auto stop = std::min(challenge.find_first_of(" \t,", at), challenge.size());
      value = challenge.substr(at, stop - at);
      at = stop;
    }
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

bool is_redirection(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}
constexpr int kMostRedirections = 5;

/// Seconds that an answer may take: $HEDDLE_REGISTRY_TIMEOUT.
std::chrono::seconds patience() {
  constexpr long kDefault = 60;
  long out = 0;
  const char* text = std::getenv("HEDDLE_REGISTRY_TIMEOUT");
  if (text == nullptr) return std::chrono::seconds(kDefault);
  const auto* end = text + std::string_view(text).size();
  const auto read = std::from_chars(text, end, out);
  if (read.ec != std::errc() || read.ptr != end || out < 1 || out > 86'400)
    throw Error("HEDDLE_REGISTRY_TIMEOUT", "no number of seconds", text, "1 to 86400");
  return std::chrono::seconds(out);
}

}  // namespace

Json parse_json(std::string_view text) {
  constexpr int kDeepest = 64;
  bool deep = false;
  auto out = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        deep = deep || depth > kDeepest;
        return !deep;  // the rest is read, and kept nowhere
      },
      false);
  return deep ? Json(Json::value_t::discarded) : out;
}

RegistryClient::RegistryClient(Reference at) : RegistryClient(at, find_authorities(at.host)) {}

RegistryClient::RegistryClient(Reference at, std::string authorities)
    : at_(std::move(at)),
      scheme_(authorities.empty() ? at_.scheme() : "https"),
      http_(std::move(authorities), patience()) {}

std::string RegistryClient::url(const std::string& rest) const {
  return scheme_ + "://" + at_.host + "/v2/" + at_.repository + "/" + rest;
}

bool RegistryClient::is_own(const std::string& url) const {
  return url.starts_with(scheme_ + "://" + at_.host + "/");
}

tl::unexpected<Error> RegistryClient::refused(const HttpAnswer& answer,
                                              const std::string& what) const {
  const auto name = at_.host + "/" + at_.repository;
  std::string reason = fmt::format("HTTP status {}", answer.status);
  const auto json = parse_json(answer.body);
  if (json.is_object() && json.contains("errors") && json["errors"].is_array() &&
      !json["errors"].empty() && json["errors"][0].is_object() &&
      json["errors"][0].value("message", Json()).is_string())
    reason += ", " + escape_for_terminal(json["errors"][0]["message"].get<std::string>());
  if (answer.status == 401 || answer.status == 403)
    return fail(Error::with_code(EACCES, name, what, reason, "podman login " + at_.host));
  return fail(Error::with_code(answer.status == 404 ? ENOENT : EPROTO, name, what, reason));
}

tl::unexpected<Error> RegistryClient::damaged(const char* reason) const {
  return fail(Error::with_code(EBADMSG, at_.text(), "cannot pull", reason));
}

Result<void> RegistryClient::authorize(const std::string& header, const char* actions) {
  const auto found = find_credentials(at_.host, at_.repository);
  const auto challenge = challenge_of(header, "Bearer");
  if (challenge.empty()) {
    if (found && !challenge_of(header, "Basic").empty()) {
      user_ = found->user;
      password_ = found->password;
    }
    return {};
  }
  const auto realm = challenge_parameter(challenge, "realm");
  if (realm.empty()) return {};
  if (!is_safe(realm) || (scheme_ == "https" && !realm.starts_with("https://")))
    return fail(at_.host, "cannot log in", "the registry wants the password sent without TLS");
  if (found && !may_have_credentials(realm, at_.host))
    return fail(Error::with_code(
        EACCES, at_.host, "cannot log in",
        "the registry wants the password sent to " + escape_for_terminal(host_of(realm)),
        "if that is right: HEDDLE_TOKEN_HOSTS=" + escape_for_terminal(host_of(realm))));
  const auto service = url_escaped(challenge_parameter(challenge, "service"));
  const auto scope = url_escaped(fmt::format("repository:{}:{}", at_.repository, actions));
  HttpRequest request;
  request.url = fmt::format("{}{}service={}&scope={}", realm,
                            realm.find('?') == realm.npos ? '?' : '&', service, scope);
  std::string form;
  if (found && !found->identity_token.empty()) {  // OAuth2, as docker's token specification has it
    form = fmt::format(
        "grant_type=refresh_token&client_id=heddle&service={}&scope={}&refresh_token={}", service,
        scope, url_escaped(found->identity_token));
    request.method = "POST";
    request.url = realm;
    request.body = form;
  } else if (found) {
    request.user = found->user;
    request.password = found->password;
  }
  const auto answer = TRY(http_.send(request));
  if (answer.status != 200) return refused(answer, "cannot log in");
  const auto json = parse_json(answer.body);
  for (const char* key : {"token", "access_token"})
    if (json.is_object() && json.contains(key) && json[key].is_string())
      bearer_ = json[key].get<std::string>();
  if (bearer_.empty() || bearer_.find_first_of("\r\n") != bearer_.npos)
    return fail(at_.host, "cannot log in", "the registry's answer holds no token");
  return {};
}

void RegistryClient::add_credentials(HttpRequest& request) const {
  if (!is_own(request.url)) return;
  if (!bearer_.empty()) request.headers.push_back("Authorization: Bearer " + bearer_);
  request.user = user_;
  request.password = password_;
}

Result<HttpAnswer> RegistryClient::follow(HttpRequest request, HttpAnswer answer) {
  for (int i = 0; is_redirection(answer.status) && i < kMostRedirections; ++i) {
    const auto next = resolve_url(request.url, header(answer, "location"));
    if (!is_safe(next) || (request.url.starts_with("https://") && !next.starts_with("https://")))
      return fail(Error::with_code(EPROTO, at_.host, "the registry failed",
                                   "it redirects to no https address"));
    request.url = next;
    auto now = request;
    add_credentials(now);
    answer = TRY(http_.send(now));
  }
  if (is_redirection(answer.status))
    return fail(
        Error::with_code(EPROTO, at_.host, "the registry failed", "it redirects without end"));
  return answer;
}

Result<HttpAnswer> RegistryClient::send(HttpRequest request, const char* actions) {
  bool authorized = false;
  Backoff pauses(100ms, 400ms);
  for (int busy = 1;;) {
    auto now = request;
    add_credentials(now);
    auto answer = TRY(http_.send(now));
    if (is_busy(answer.status) && busy++ < kMostBusy) {
      pauses.sleep();
      continue;
    }
    if (is_redirection(answer.status) && !request.body)
      return follow(std::move(request), std::move(answer));
    if (answer.status != 401 || authorized) return answer;
    authorized = true;
    bearer_.clear();
    TRY(authorize(header(answer, "www-authenticate"), actions));
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
  auto answer = TRY(send(std::move(request), "pull"));
  if (answer.status != 200) return refused(answer, "cannot pull");
  const Descriptor descriptor{media_type_of(answer), digest_of(answer.body), answer.body.size()};
  const std::string announced = header(answer, "docker-content-digest");
  if ((is_digest(version) && version != descriptor.digest) ||
      (is_digest(announced) && announced != descriptor.digest))
    return damaged("the manifest is not what its digest says");
  return Manifest{descriptor, std::move(answer.body)};
}

Result<Fd> RegistryClient::get_blob(const Descriptor& blob, int file) {
  std::uint64_t size = 0;
  HttpRequest request;
  request.url = url("blobs/" + blob.digest);
  request.most_bytes = blob.size;
  request.take = [&](std::string_view piece) {
    size += piece.size();
    return write_all(file, piece, "the copy of " + at_.text());
  };
  const auto answer = TRY(send(std::move(request), "pull"));
  if (answer.status != 200) return refused(answer, "cannot pull");
  if (size != blob.size) return damaged("the blob is truncated");
  auto content = TRY(open_file("/proc/self/fd/" + std::to_string(file), O_RDONLY));
  if ("sha256:" + TRY(hash_file(content.get(), "the copy")).hex() != blob.digest)
    return damaged("the blob is not what its digest says");
  return content;
}

Result<Descriptor> RegistryClient::put_blob(std::string_view content,
                                            const std::string& media_type) {
  Descriptor blob{media_type, digest_of(content), content.size()};
  HttpRequest head;
  head.method = "HEAD";
  head.url = url("blobs/" + blob.digest);
  if (TRY(send(std::move(head), "pull,push")).status == 200) return blob;
  HttpRequest start;
  start.method = "POST";
  start.url = url("blobs/uploads/");
  start.body = "";
  const auto started = TRY(send(std::move(start), "pull,push"));
  if (started.status != 202) return refused(started, "cannot push");
  const auto location = resolve_url(url("blobs/uploads/"), header(started, "location"));
  // Our credentials go along: to this registry only.
  if (!is_own(location))
    return fail(at_.text(), "cannot push", "the registry sends the upload to another host");
  HttpRequest upload;
  upload.method = "PUT";
  upload.url =
      location + (location.find('?') == location.npos ? "?" : "&") + "digest=" + blob.digest;
  upload.headers = {"Content-Type: application/octet-stream"};
  upload.body = content;
  const auto done = TRY(send(std::move(upload), "pull,push"));
  if (done.status != 201) return refused(done, "cannot push");
  return blob;
}

Result<Descriptor> RegistryClient::put_manifest(const std::string& text,
                                                const std::string& media_type,
                                                const std::string& version,
                                                const std::string& artifact_type,
                                                const std::string& subject) {
  const Descriptor out{media_type, digest_of(text), text.size()};
  HttpRequest request;
  request.method = "PUT";
  request.url = url("manifests/" + (version.empty() ? out.digest : version));
  request.headers = {"Content-Type: " + media_type};
  request.body = text;
  const auto answer = TRY(send(std::move(request), "pull,push"));
  if (answer.status != 201) return refused(answer, "cannot push");
  // A registry with the referrers API says that it took note (distribution spec 1.1).
  if (!subject.empty() && *header(answer, "oci-subject") == '\0')
    TRY(add_to_fallback(subject, out, artifact_type));
  return out;
}

Result<std::string> RegistryClient::referrers_index(const std::string& subject) {
  HttpRequest request;
  request.url = url("referrers/" + subject);
  request.headers = {fmt::format("Accept: {}", kIndexType)};
  auto answer = TRY(send(std::move(request), "pull"));
  if (answer.status == 200) return std::move(answer.body);
  return TRY(get_manifest(fallback_tag(subject))).text;
}

Result<bool> RegistryClient::add_once(const std::string& tag, const Descriptor& one,
                                      const std::string& artifact_type) {
  Json index = {{"schemaVersion", 2}, {"mediaType", kIndexType}, {"manifests", Json::array()}};
  if (auto old = get_manifest(tag)) {
    auto json = parse_json(old->text);
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
  TRY(put_manifest(index.dump(), kIndexType, tag, "", ""));
  return false;
}

Result<void> RegistryClient::add_to_fallback(const std::string& subject, const Descriptor& one,
                                             const std::string& artifact_type) {
  // Nothing locks a tag: another's index may have come between, so it is looked at once more,
  // after a while that differs from theirs.
  std::mt19937 random{std::random_device()()};
  for (unsigned round = 1; round <= kMostRounds; ++round) {
    if (TRY(add_once(fallback_tag(subject), one, artifact_type))) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % (20 * round)));
  }
  return fail(at_.text(), "cannot attach",
              "others keep changing " + fallback_tag(subject) + ": try again");
}

Result<std::optional<std::string>> RegistryClient::find_referrer(const std::string& subject,
                                                                 const std::string& artifact_type) {
  const auto text = referrers_index(subject);
  if (!text && text.error().code() == ENOENT) return std::nullopt;
  if (!text) return fail(text.error());
  const auto json = parse_json(*text);
  std::optional<std::string> found;
  if (json.is_object() && json.contains("manifests") && json["manifests"].is_array())
    for (const auto& one : json["manifests"])
      if (one.is_object() && one.value("artifactType", Json()) == artifact_type &&
          one.value("digest", Json()).is_string() && is_digest(one["digest"].get<std::string>()))
        found = one["digest"].get<std::string>();
  return found;
}

}  // namespace heddle::registry
