// SPDX-License-Identifier: MIT
#include "fsgen/registry/http.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace heddle::registry {
namespace {

struct Sink {
  HttpAnswer* answer;
  std::size_t most;
  bool too_much = false;
};

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& sink = *static_cast<Sink*>(user);
  if (sink.answer->body.size() + size * count > sink.most) {
    sink.too_much = true;
    return 0;
  }
  sink.answer->body.append(data, size * count);
  return size * count;
}

std::size_t take_header(char* data, std::size_t size, std::size_t count, void* user) {
  auto& answer = *static_cast<Sink*>(user)->answer;
  const std::string line(data, size * count);
  if (line.starts_with("HTTP/")) answer.headers.clear();  // another answer of a chain begins
  const auto colon = line.find(':');
  if (colon != line.npos) {
    auto name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto from = line.find_first_not_of(" \t", colon + 1);
    const auto to = line.find_last_not_of(" \t\r\n");
    answer.headers[name] = from == line.npos || to < from ? "" : line.substr(from, to - from + 1);
  }
  return size * count;
}

std::string host_of(const std::string& url) {
  const auto start = url.find("://") + 3;
  return url.substr(start, url.find('/', start) - start);
}

struct FreeList {
  void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
};

}  // namespace

Http::Http(std::string authorities) : curl_(nullptr), authorities_(std::move(authorities)) {
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
  Sink sink{&answer, request.most_bytes};
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
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, https ? "https" : "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, https ? "https" : "http,https");
  set(CURLOPT_FOLLOWLOCATION, request.body == nullptr ? 1L : 0L);
  set(CURLOPT_MAXREDIRS, 5L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, 10L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, 20L);
  set(CURLOPT_USERAGENT, "heddle/" HEDDLE_VERSION);
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_WRITEFUNCTION, &take_body);
  set(CURLOPT_WRITEDATA, &sink);
  set(CURLOPT_HEADERFUNCTION, &take_header);
  set(CURLOPT_HEADERDATA, &sink);
  // In place of the system's bundle; the system's folder of authorities counts on.
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
  } else if (request.body != nullptr) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    set(CURLOPT_POSTFIELDS, request.body->c_str());
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const auto code = curl_easy_perform(curl_);
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
  return answer;
}

}  // namespace heddle::registry
