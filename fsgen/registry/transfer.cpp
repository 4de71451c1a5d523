// SPDX-License-Identifier: MIT
#include "fsgen/registry/transfer.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "fsgen/registry/blob_cache.hpp"
#include "fsgen/registry/registry_client.hpp"

namespace heddle::registry {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEmptyType = "application/vnd.oci.empty.v1+json";
constexpr std::size_t kMostContent = std::size_t{4} << 30;

/// The one layer of a manifest of ours; an empty digest: it is another kind of manifest.
Result<Descriptor> layer_of(const std::string& text, const std::string& type,
                            const std::string& where) {
  const auto wrong = [&](const char* reason) {
    return fail(Error::with_code(EBADMSG, where, "damaged manifest", reason));
  };
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return wrong("not JSON");
  if (!json.contains("layers") || !json["layers"].is_array()) return Descriptor{};
  for (const auto& layer : json["layers"]) {
    if (!layer.is_object() || layer.value("mediaType", Json()) != type) continue;
    const auto digest = layer.value("digest", Json());
    const auto size = layer.value("size", Json());
    if (!digest.is_string() || !is_digest(digest.get<std::string>())) return wrong("its digest");
    if (!size.is_number_unsigned() || size.get<std::size_t>() > kMostContent)
      return wrong("its size");
    return Descriptor{type, digest.get<std::string>(), size.get<std::size_t>()};
  }
  return Descriptor{};
}

class Puller {
 public:
  Puller(const Reference& from, const std::string& type, const std::string& cache)
      : from_(from), type_(type), client_(from), cache_(cache) {}

  Result<std::string> run() {
    auto text = manifest(from_);
    if (!text) return fail(std::move(text.error()));
    auto layer = layer_of(*text, type_, from_.text());
    if (layer && layer->digest.empty()) {  // an image: what is attached to it?
      text = attached(*text);
      if (!text) return fail(std::move(text.error()));
      layer = layer_of(*text, type_, from_.text());
    }
    if (!layer) return fail(std::move(layer.error()));
    if (layer->digest.empty()) return nothing_here();
    if (auto known = cache_.blob(layer->digest)) return std::move(*known);
    auto content = client_.get_blob(layer->digest, layer->size);
    if (content) cache_.keep(*content);
    return content;
  }

 private:
  tl::unexpected<Error> nothing_here() {
    return fail(Error::with_code(ENOENT, from_.text(), "cannot pull",
                                 "there is nothing of type " + type_ + ", nor attached to it"));
  }

  Result<std::string> manifest(const Reference& at) {
    if (!at.digest.empty())
      if (auto known = cache_.blob(at.digest)) return std::move(*known);
    auto got = client_.get_manifest(at.version());
    if (got) {
      cache_.keep(got->text);
      if (at.digest.empty()) cache_.note(at.text(), got->descriptor.digest);
      return std::move(got->text);
    }
    return offline(at.text(), std::move(got.error()));
  }

  Result<std::string> attached(const std::string& image) {
    const auto digest = digest_of(image);
    const auto key = from_.host + "/" + from_.repository + "@" + digest + " " + type_;
    auto found = client_.find_referrer(digest, type_);
    if (!found) return offline(key, std::move(found.error()));
    if (!*found) return nothing_here();
    cache_.note(key, **found);
    auto at = from_;
    at.digest = **found;
    return manifest(at);
  }

  /// What `key` meant when the registry could still be reached.
  Result<std::string> offline(const std::string& key, Error error) {
    if (error.code() != EHOSTUNREACH) return fail(std::move(error));
    const auto digest = cache_.noted(key);
    auto known = digest ? cache_.blob(*digest) : std::nullopt;
    if (!known) return fail(std::move(error));
    if (!told_)
      warn(fmt::format("{}: using the copy of {} in the cache", error.message(), *digest));
    told_ = true;
    return std::move(*known);
  }

  const Reference& from_;
  const std::string& type_;
  RegistryClient client_;
  BlobCache cache_;
  bool told_ = false;
};

}  // namespace

std::string default_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/heddle/oci";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/heddle/oci" : std::string();
}

Result<std::string> push(const Reference& to, const std::string& content,
                         const PushOptions& options) {
  RegistryClient client(to);
  Json manifest = {
      {"schemaVersion", 2}, {"mediaType", kManifestType}, {"artifactType", options.type}};
  Descriptor subject;
  if (!options.attach_to.empty()) {
    const auto image = client.get_manifest(options.attach_to);
    if (!image) return fail(image.error());
    subject = image->descriptor;
  }
  const auto config = client.put_blob("{}", kEmptyType);
  if (!config) return fail(config.error());
  const auto layer = client.put_blob(content, options.type);
  if (!layer) return fail(layer.error());
  const auto descriptor = [](const Descriptor& one) {
    return Json{{"mediaType", one.media_type}, {"digest", one.digest}, {"size", one.size}};
  };
  manifest["config"] = descriptor(*config);
  Json one = descriptor(*layer);
  one["annotations"] = {{"org.opencontainers.image.title", options.title}};
  manifest["layers"] = Json::array({std::move(one)});
  if (!subject.digest.empty()) manifest["subject"] = descriptor(subject);
  const auto done =
      client.put_manifest(manifest.dump(), kManifestType, to.tag, options.type, subject.digest);
  if (!done) return fail(done.error());
  return done->digest;
}

Result<std::string> pull(const Reference& from, const std::string& type, const std::string& cache) {
  return Puller(from, type, cache).run();
}

}  // namespace heddle::registry
