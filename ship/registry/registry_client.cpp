// SPDX-License-Identifier: MIT
#include "ship/registry/registry_client.hpp"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/backoff.hpp"
#include "base/bounded_json.hpp"
#include "base/content_hash.hpp"
#include "base/escape.hpp"
#include "base/try.hpp"
#include "ship/registry/credentials.hpp"

namespace heddle::registry {

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::string> headers;
  std::optional<std::string_view> body;               ///< of PUT and POST; borrowed
  std::uint64_t most_bytes = std::uint64_t{4} << 20;  ///< of the answer; a larger one fails
  /// Gets the body of an answer 200 piece by piece, in place of HttpAnswer::body.
  std::function<Result<void>(std::string_view)> take;
};

struct HttpAnswer {
  long status = 0;
  /// Those of kHeaders, names in lower case; several of one name are lines.
  std::map<std::string, std::string> headers;
  std::string body;
};

/// libcurl's easy interface, the only use of it. Follows no redirections, and gives up on peers
/// that do not answer, stall or trickle.
class Http {
 public:
  /// `authorities`: PEM, trusted beside the system's; may be empty. Of `insecure_host` alone any
  /// certificate is accepted; empty: of none. An answer may take `patience`, and a second for each
  /// 64 KiB of the request and the largest answer.
  Http(std::string authorities, std::string insecure_host, std::chrono::seconds patience)
      : authorities_(std::move(authorities)),
        insecure_host_(std::move(insecure_host)),
        patience_(patience) {
    if (!curl_) throw Error("libcurl", "cannot be started");
  }

  /// Any status is an answer. Fails, naming the host, without a complete answer: EHOSTUNREACH, not
  /// reached; ECONNREFUSED, likewise, no connection; EPROTONOSUPPORT, no TLS handshake.
  Result<HttpAnswer> send(const HttpRequest& request);

 private:
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl_{curl_easy_init(), &curl_easy_cleanup};
  std::string authorities_;
  std::string insecure_host_;
  std::chrono::seconds patience_;
};

namespace {

using namespace std::chrono_literals;

constexpr const char* kHeaders[] = {"content-type", "docker-content-digest", "location",
                                    "oci-subject", "www-authenticate"};
constexpr std::uint64_t kBytesPerSecond = 64 << 10;
constexpr long kConnectSeconds = 10;
constexpr long kStallSeconds = 20;

struct Sink {
  CURL* curl;
  const HttpRequest& request;
  HttpAnswer& answer;
  std::uint64_t count = 0;
  bool too_much = false;
  std::optional<Error> failed;
};

/// Of a body in memory: manifests, tokens, errors.
constexpr std::size_t kMostInMemory = std::size_t{4} << 20;

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& sink = *static_cast<Sink*>(user);
  const std::string_view piece(data, size * count);
  sink.count += piece.size();
  long status = 0;
  curl_easy_getinfo(sink.curl, CURLINFO_RESPONSE_CODE, &status);
  const bool in_memory = !sink.request.take || status != 200;
  sink.too_much = sink.count > sink.request.most_bytes ||
                  (in_memory && sink.answer.body.size() + piece.size() > kMostInMemory);
  if (sink.too_much) return 0;
  if (in_memory) {
    sink.answer.body += piece;
  } else if (auto done = sink.request.take(piece); !done) {
    sink.failed = std::move(done.error());
    return 0;
  }
  return piece.size();
}

/// The URL of `location` relative to `base` (RFC 3986); empty: it is invalid.
std::string resolve_url(const std::string& base, const std::string& location) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> url(curl_url(), &curl_url_cleanup);
  char* text = nullptr;
  if (!url || curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK ||
      curl_url_get(url.get(), CURLUPART_URL, &text, 0) != CURLUE_OK)
    return {};
  std::string out = text;
  curl_free(text);
  return out;
}

const char* header(const HttpAnswer& answer, const char* name) {
  const auto found = answer.headers.find(name);
  return found == answer.headers.end() ? "" : found->second.c_str();
}

/// The manifest's `mediaType`, else the registry's content type, without parameters.
std::string media_type_of(const HttpAnswer& answer) {
  auto type = text_member(parse_json(answer.body), "mediaType");
  if (type.empty()) type = header(answer, "content-type");
  type = type.substr(0, type.find(';'));
  return type.empty() ? kManifestType : type;
}

bool equal_ignoring_case(std::string_view one, std::string_view other) {
  return one.size() == other.size() && ::strncasecmp(one.data(), other.data(), one.size()) == 0;
}

/// The header's first challenge of the scheme `name`; empty: none.
std::string_view challenge_of(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const auto line = header.substr(0, header.find('\n'));
    header.remove_prefix(std::min(header.size(), line.size() + 1));
    const auto space = std::min(line.find(' '), line.size());
    if (equal_ignoring_case(line.substr(0, space), name)) return line;
  }
  return {};
}

std::string url_escaped(const std::string& text) {
  const std::unique_ptr<char, decltype(&curl_free)> out(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), &curl_free);
  return out ? out.get() : "";
}

/// "sha256-<hex>", the tag that stands in for the referrers API.
std::string fallback_tag(std::string digest) {
  digest[6] = '-';
  return digest;
}

/// docker-registry answers 500 for a tag that is being written (2.8.2, file system storage: 5 of 32
/// at once); others answer that they are busy.
bool is_busy(long status) { return status == 429 || (status >= 500 && status <= 504); }
constexpr int kMostBusy = 3;

/// Attempts to add a line to an index that others change, too.
constexpr unsigned kMostRounds = 20;

/// What to do about an error of libcurl's.
const char* hint_of(CURLcode code) {
  if (code == CURLE_SSL_CONNECT_ERROR)
    return "if it speaks plain http: `insecure = true` for it in registries.conf";
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
    return "its authority's certificate belongs in certs.d/HOST[:PORT]/ca.crt: "
           "containers-certs.d(5)";
  return "";
}

/// The value of `name` in a challenge (RFC 9110, 11.6.1: `Bearer realm="...",service="..."`);
/// empty: none. Linear in the length of the text, which is untrusted.
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

/// How long an answer may take: $HEDDLE_REGISTRY_TIMEOUT.
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

Result<HttpAnswer> Http::send(const HttpRequest& request) {
  HttpAnswer answer;
  CURL* const curl = curl_.get();
  Sink sink{curl, request, answer, 0, false, {}};
  std::array<char, CURL_ERROR_SIZE> reason{};
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr,
                                                                      &curl_slist_free_all);
  const auto add = [&](const std::string& line) {
    auto* list = curl_slist_append(headers.get(), line.c_str());
    if (list == nullptr) throw Error("libcurl", "out of memory");
    static_cast<void>(headers.release());
    headers.reset(list);
  };
  for (const auto& line : request.headers) add(line);
  add("Expect:");  // no `100-continue` before a body
  curl_easy_reset(curl);
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(curl, option, value); };
  const bool https = request.url.starts_with("https:");
  const long patience = patience_.count();
  const auto bytes =
      (request.body ? request.body->size() : 0) + (request.take ? request.most_bytes : 0);
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, https ? "https" : "http");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, std::min(kConnectSeconds, patience));
  set(CURLOPT_LOW_SPEED_LIMIT, 100L);
  set(CURLOPT_LOW_SPEED_TIME, std::min(kStallSeconds, patience));
  set(CURLOPT_TIMEOUT, patience + static_cast<long>(bytes / kBytesPerSecond));
  set(CURLOPT_USERAGENT, "heddle/" HEDDLE_VERSION);
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_WRITEFUNCTION, &take_body);
  set(CURLOPT_WRITEDATA, &sink);
  // Replaces the system's bundle; the system's directory of authorities remains trusted.
  curl_blob authorities{authorities_.data(), authorities_.size(), CURL_BLOB_NOCOPY};
  if (!authorities_.empty()) set(CURLOPT_CAINFO_BLOB, &authorities);
  const bool insecure = !insecure_host_.empty() && host_of(request.url) == insecure_host_;
  set(CURLOPT_SSL_VERIFYPEER, insecure ? 0L : 1L);
  set(CURLOPT_SSL_VERIFYHOST, insecure ? 0L : 2L);
  if (!https) set(CURLOPT_NOPROXY, "*");  // plain http: this node's, or the site's own
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.body) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    set(CURLOPT_POSTFIELDS, request.body->data());
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const auto code = curl_easy_perform(curl);
  if (sink.failed) return fail(std::move(*sink.failed));
  if (sink.too_much) return fail_errno(host_of(request.url), "the registry sent too much", EFBIG);
  if (code != CURLE_OK) {
    const int number = code == CURLE_COULDNT_CONNECT     ? ECONNREFUSED
                       : code == CURLE_SSL_CONNECT_ERROR ? EPROTONOSUPPORT
                       : code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_OPERATION_TIMEDOUT
                           ? EHOSTUNREACH
                           : EPROTO;
    const bool unreachable = is_unreachable(number);
    return fail(Error::with_code(number, host_of(request.url),
                                 unreachable ? "cannot reach the registry" : "the registry failed",
                                 reason[0] != '\0' ? reason.data() : curl_easy_strerror(code),
                                 hint_of(code)));
  }
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
  for (const char* name : kHeaders) {
    curl_header* line = nullptr;
    for (std::size_t i = 0; curl_easy_header(curl, name, i, CURLH_HEADER, -1, &line) == CURLHE_OK;
         ++i)
      answer.headers[name] += (i > 0 ? "\n" : "") + std::string(line->value);
  }
  return answer;
}

Json parse_json(std::string_view text) { return parse_bounded<Json>(text); }

std::string text_member(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& list_member(const Json& json, const char* key) {
  static const Json kNone = Json::array();
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_array() ? *found : kNone;
}

RegistryClient::RegistryClient(const Reference& at)
    : location_(value_or_throw(locate(at, site_entries()))) {
  auto authorities = find_authorities(at_.host);
  scheme_ = authorities.empty() && !location_.insecure ? at_.scheme() : "https";
  may_be_plain_ = location_.insecure;
  http_ = std::make_unique<Http>(std::move(authorities),
                                 location_.insecure ? location_.host : std::string(), patience());
}

RegistryClient::~RegistryClient() = default;

std::string RegistryClient::url(const std::string& rest) const {
  return scheme_ + "://" + location_.host + "/v2/" + at_.repository + "/" + rest;
}

bool RegistryClient::is_own(const std::string& url) const {
  return url.starts_with(scheme_ + "://" + location_.host + "/");
}

/// Whether requests may go to `url`: https, or http to a loopback host or this insecure registry.
bool RegistryClient::is_safe(const std::string& url) const {
  Reference at;
  at.host = host_of(url);
  return !at.host.empty() && (url.starts_with("https://") || at.scheme() == "http" ||
                              (location_.insecure && at.host == location_.host));
}

tl::unexpected<Error> RegistryClient::refused(const HttpAnswer& answer, const std::string& what,
                                              const std::string& version) const {
  const auto name = at_.host + "/" + at_.repository +
                    (version.empty() ? "" : (is_digest(version) ? "@" : ":") + version);
  std::string reason = fmt::format("HTTP status {}", answer.status);
  const auto json = parse_json(answer.body);
  if (const auto& errors = list_member(json, "errors"); !errors.empty())
    if (const auto message = text_member(errors[0], "message"); !message.empty())
      reason += ", " + escape_for_terminal(message);
  if (answer.status == 401 || answer.status == 403) {
    const auto helper = find_credential_helper(at_.host);
    return fail(Error::with_code(
        EACCES, name, what, reason,
        "podman login " + at_.host +
            (helper.empty() ? "" : " (" + helper + ": credential helpers are not started)")));
  }
  // What Go's and nginx' servers answer plain http on their TLS port.
  if (answer.status == 400 && scheme_ == "http" && answer.body.find("HTTPS") != std::string::npos)
    return fail(Error::with_code(EPROTO, name, what, reason + ", it wants TLS",
                                 "its authority's certificate belongs in certs.d/" + at_.host +
                                     "/ca.crt: containers-certs.d(5)"));
  return fail(Error::with_code(answer.status == 404 ? ENOENT : EPROTO, name, what, reason));
}

tl::unexpected<Error> RegistryClient::damaged(const char* reason) const {
  return fail(Error::with_code(EBADMSG, at_.text(), "cannot pull", reason));
}

Result<void> RegistryClient::authorize(const std::string& header, const char* actions) {
  const auto found = find_credentials(at_.host, at_.repository);
  const auto challenge = challenge_of(header, "Bearer");
  if (challenge.empty()) {
    if (found && !challenge_of(header, "Basic").empty()) authorization_ = "Basic " + found->basic;
    return {};
  }
  const auto realm = challenge_parameter(challenge, "realm");
  if (realm.empty()) return {};
  if (!is_safe(realm) || (scheme_ == "https" && !realm.starts_with("https://")))
    return fail(at_.host, "cannot log in", "the registry wants the password sent without TLS");
  if (found && !may_have_credentials(realm, location_.host))
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
    request.headers.push_back("Authorization: Basic " + found->basic);
  }
  const auto answer = TRY(http_->send(request));
  if (answer.status != 200) return refused(answer, "cannot log in");
  const auto json = parse_json(answer.body);
  auto token = text_member(json, "access_token");
  if (token.empty()) token = text_member(json, "token");
  if (token.empty() || token.find_first_of("\r\n") != token.npos)
    return fail(at_.host, "cannot log in", "the registry's answer holds no token");
  authorization_ = "Bearer " + token;
  return {};
}

Result<HttpAnswer> RegistryClient::send_once(HttpRequest request) {
  // The URL may be from before the first answer.
  if (scheme_ == "http" && request.url.starts_with("https://" + location_.host + "/"))
    request.url.replace(0, 5, scheme_);
  const bool own = is_own(request.url);
  if (own && !authorization_.empty()) request.headers.push_back("Authorization: " + authorization_);
  auto answer = http_->send(request);
  const int code = answer ? 0 : answer.error().code();
  // containers-registries.conf(5): an insecure registry may be one without TLS. One that has
  // answered with TLS is not, and later failures send no password in clear.
  if (own && may_be_plain_ && (code == ECONNREFUSED || code == EPROTONOSUPPORT)) {
    request.url.replace(0, 5, "http");
    if (auto plain = http_->send(request)) {
      scheme_ = "http";
      answer = std::move(plain);
    }
  }
  if (own && answer) may_be_plain_ = false;
  return answer;
}

Result<HttpAnswer> RegistryClient::follow(HttpRequest request, HttpAnswer answer) {
  const auto wrong = [&](const char* reason) {
    return fail(Error::with_code(EPROTO, at_.host, "the registry failed", reason));
  };
  for (int i = 0; is_redirection(answer.status); ++i) {
    if (i == kMostRedirections) return wrong("it redirects without end");
    const auto next = resolve_url(request.url, header(answer, "location"));
    if (!is_safe(next) || (request.url.starts_with("https://") && !next.starts_with("https://")))
      return wrong("it redirects to no https address");
    request.url = next;
    answer = TRY(send_once(request));
  }
  return answer;
}

Result<HttpAnswer> RegistryClient::send(HttpRequest request, const char* actions) {
  bool authorized = false;
  Backoff pauses(100ms, 400ms);
  for (int busy = 1;;) {
    auto answer = TRY(send_once(request));
    if (is_busy(answer.status) && busy++ < kMostBusy) {
      pauses.sleep();
      continue;
    }
    if (is_redirection(answer.status) && !request.body)
      return follow(std::move(request), std::move(answer));
    if (answer.status != 401 || authorized) return answer;
    authorized = true;
    authorization_.clear();
    TRY(authorize(header(answer, "www-authenticate"), actions));
    if (authorization_.empty()) return answer;
  }
}

Result<RegistryClient::Manifest> RegistryClient::get_manifest(const std::string& version,
                                                              const char* what) {
  HttpRequest request;
  request.url = url("manifests/" + version);
  request.most_bytes = kMostManifest;
  request.headers = {fmt::format("Accept: {}, {}, {}, {}", kManifestType, kIndexType,
                                 "application/vnd.docker.distribution.manifest.v2+json",
                                 "application/vnd.docker.distribution.manifest.list.v2+json")};
  auto answer = TRY(send(std::move(request), "pull"));
  if (answer.status != 200) return refused(answer, what, version);
  const Descriptor descriptor{media_type_of(answer), digest_of(answer.body), answer.body.size()};
  const std::string announced = header(answer, "docker-content-digest");
  if ((is_digest(version) && version != descriptor.digest) ||
      (is_digest(announced) && announced != descriptor.digest))
    return damaged("the manifest does not match its digest");
  return Manifest{descriptor, std::move(answer.body)};
}

Result<Fd> RegistryClient::get_blob(const Descriptor& blob, int file, const std::string& name) {
  std::uint64_t size = 0;
  HttpRequest request;
  request.url = url("blobs/" + blob.digest);
  request.most_bytes = blob.size;
  request.take = [&](std::string_view piece) {
    size += piece.size();
    return write_all(file, piece, name.empty() ? "the copy of " + at_.text() : name);
  };
  const auto answer = TRY(send(std::move(request), "pull"));
  if (answer.status != 200) return refused(answer, "cannot pull");
  if (size != blob.size) return damaged("the blob is truncated");
  auto content = TRY(open_file("/proc/self/fd/" + std::to_string(file), O_RDONLY));
  if ("sha256:" + TRY(hash_file(content.get(), "the copy")).hex() != blob.digest)
    return damaged("the blob does not match its digest");
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
  // The request carries the authorization: to this registry only.
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
  // A registry with the referrers API answers with this header (distribution spec 1.1).
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
    if (json.is_object() && json["manifests"].is_array()) index = std::move(json);
  } else if (old.error().code() != ENOENT) {
    return fail(std::move(old.error()));
  }
  for (const auto& known : index["manifests"])
    if (text_member(known, "digest") == one.digest) return true;
  index["manifests"].push_back({{"mediaType", one.media_type},
                                {"digest", one.digest},
                                {"size", one.size},
                                {"artifactType", artifact_type}});
  TRY(put_manifest(index.dump(), kIndexType, tag, "", ""));
  return false;
}

Result<void> RegistryClient::add_to_fallback(const std::string& subject, const Descriptor& one,
                                             const std::string& artifact_type) {
  // A tag has no lock, and another client may overwrite the index with one that it read before: it
  // is read again after a pause that is longer than a client needs between its two requests.
  std::mt19937 random{std::random_device()()};
  for (unsigned round = 1; round <= kMostRounds; ++round) {
    if (TRY(add_once(fallback_tag(subject), one, artifact_type))) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + random() % (50 * round)));
  }
  return fail(at_.text(), "cannot attach",
              "others keep changing " + fallback_tag(subject) + ": try again");
}

Result<std::optional<std::string>> RegistryClient::find_referrer(const std::string& subject,
                                                                 const std::string& artifact_type) {
  const auto text = referrers_index(subject);
  if (!text && text.error().code() == ENOENT) return std::nullopt;
  if (!text) return fail(text.error());
  std::optional<std::string> found;
  const auto index = parse_json(*text);
  for (const auto& one : list_member(index, "manifests"))
    if (auto digest = text_member(one, "digest");
        text_member(one, "artifactType") == artifact_type && is_digest(digest))
      found = std::move(digest);
  return found;
}

}  // namespace heddle::registry
