// SPDX-License-Identifier: MIT
#include "ship/registry/http.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>

namespace heddle::registry {
namespace {

/// The headers that somebody asks for.
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

/// Of a body that is kept in memory: manifests, tokens, refusals.
constexpr std::size_t kMostKept = std::size_t{4} << 20;

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& sink = *static_cast<Sink*>(user);
  const std::string_view piece(data, size * count);
  sink.count += piece.size();
  long status = 0;
  curl_easy_getinfo(sink.curl, CURLINFO_RESPONSE_CODE, &status);
  const bool kept = !sink.request.take || status != 200;
  sink.too_much = sink.count > sink.request.most_bytes ||
                  (kept && sink.answer.body.size() + piece.size() > kMostKept);
  if (sink.too_much) return 0;
  if (kept) {
    sink.answer.body += piece;
  } else if (auto done = sink.request.take(piece); !done) {
    sink.failed = std::move(done.error());
    return 0;
  }
  return piece.size();
}

struct FreeList {
  void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
};
struct FreeUrl {
  void operator()(CURLU* url) const noexcept { curl_url_cleanup(url); }
};

}  // namespace

std::string host_of(const std::string& url) {
  const auto scheme = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  if (scheme == 0) return {};
  const auto end = std::min(url.find_first_of("/?#", scheme), url.size());
  auto host = url.substr(scheme, end - scheme);
  return host.find_first_of("@\\") == host.npos ? host : std::string();
}

std::string resolve_url(const std::string& base, const std::string& location) {
  const std::unique_ptr<CURLU, FreeUrl> url(curl_url());
  char* text = nullptr;
  if (!url || curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK ||
      curl_url_get(url.get(), CURLUPART_URL, &text, 0) != CURLUE_OK)
    return {};
  std::string out = text;
  curl_free(text);
  return out;
}

Http::Http(std::string authorities, std::chrono::seconds patience)
    : curl_(nullptr), authorities_(std::move(authorities)), patience_(patience) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  curl_ = curl_easy_init();
  if (curl_ == nullptr) throw Error("libcurl", "cannot be started");
}

Http::~Http() {
  curl_easy_cleanup(curl_);
  curl_global_cleanup();
}

Result<HttpAnswer> Http::send(const HttpRequest& request) {
  HttpAnswer answer;
  Sink sink{curl_, request, answer, 0, false, {}};
  std::array<char, CURL_ERROR_SIZE> reason{};
  std::unique_ptr<curl_slist, FreeList> headers;
  const auto add = [&](const std::string& line) {
    auto* list = curl_slist_append(headers.get(), line.c_str());
    if (list == nullptr) throw Error("libcurl", "out of memory");
    static_cast<void>(headers.release());
    headers.reset(list);
  };
  for (const auto& line : request.headers) add(line);
  add("Expect:");  // registries do not need to be asked before a body
  curl_easy_reset(curl_);
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(curl_, option, value); };
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
  // In place of the system's bundle; the system's directory of authorities counts on.
  curl_blob authorities{authorities_.data(), authorities_.size(), CURL_BLOB_NOCOPY};
  if (!authorities_.empty()) set(CURLOPT_CAINFO_BLOB, &authorities);
  if (!https) set(CURLOPT_NOPROXY, "*");  // plain http is this node's own registry
  if (!request.user.empty()) {
    set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    set(CURLOPT_USERNAME, request.user.c_str());
    set(CURLOPT_PASSWORD, request.password.c_str());
  }
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.body) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    set(CURLOPT_POSTFIELDS, request.body->data());
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const auto code = curl_easy_perform(curl_);
  if (sink.failed) return fail(std::move(*sink.failed));
  if (sink.too_much) return fail_errno(host_of(request.url), "the registry sent too much", EFBIG);
  if (code != CURLE_OK) {
    // Errors of the way there, told apart from those of what came: only they allow the cache.
    const bool unreachable = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
                             code == CURLE_OPERATION_TIMEDOUT;
    return fail(Error::with_code(unreachable ? EHOSTUNREACH : EPROTO, host_of(request.url),
                                 unreachable ? "cannot reach the registry" : "the registry failed",
                                 reason[0] != '\0' ? reason.data() : curl_easy_strerror(code)));
  }
  curl_easy_getinfo(static_cast<CURL*>(curl_), CURLINFO_RESPONSE_CODE, &answer.status);
  for (const char* name : kHeaders) {
    curl_header* line = nullptr;
    for (std::size_t i = 0; curl_easy_header(curl_, name, i, CURLH_HEADER, -1, &line) == CURLHE_OK;
         ++i)
      answer.headers[name] += (i > 0 ? "\n" : "") + std::string(line->value);
  }
  return answer;
}

}  // namespace heddle::registry
