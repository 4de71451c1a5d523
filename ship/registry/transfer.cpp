// SPDX-License-Identifier: MIT
#include "ship/registry/transfer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/oci_helper.hpp"
#include "ship/registry/blob_cache.hpp"
#include "ship/registry/registry_client.hpp"
#include "ship/registry/sha256.hpp"

namespace heddle::registry {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEmptyType = "application/vnd.oci.empty.v1+json";
/// Of compatibility artifacts: no reader takes a larger one.
constexpr std::uint64_t kMostArtifact = std::uint64_t{64} << 20;

/// The one layer of a manifest of ours; an empty digest: it is another kind of manifest.
Result<Descriptor> layer_of(const std::string& text, const std::string& type,
                            const std::string& where) {
  const auto wrong = [&](const char* reason) {
    return fail(Error::with_code(EBADMSG, where, "damaged manifest", reason));
  };
  const auto json = parse_json(text);
  const auto most = type == kArtifactMediaType ? kMostArtifact : kMostContent;
  if (!json.is_object()) return wrong("not JSON");
  if (!json.contains("layers") || !json["layers"].is_array()) return Descriptor{};
  for (const auto& layer : json["layers"]) {
    if (!layer.is_object() || layer.value("mediaType", Json()) != type) continue;
    const auto digest = layer.value("digest", Json());
    const auto size = layer.value("size", Json());
    if (!digest.is_string() || !is_digest(digest.get<std::string>())) return wrong("its digest");
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > most) return wrong("its size");
    return Descriptor{type, digest.get<std::string>(), size.get<std::uint64_t>()};
  }
  return Descriptor{};
}

class Puller {
 public:
  Puller(const Reference& from, const std::string& type, const std::string& cache)
      : from_(from), type_(type), client_(from), cache_(cache) {}

  Result<Fd> run() {
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
    return fetch(*layer);
  }

 private:
  tl::unexpected<Error> nothing_here() {
    return fail(Error::with_code(ENOENT, from_.text(), "cannot pull",
                                 "there is nothing of type " + type_ + ", nor attached to it"));
  }

  /// Into the cache, or where it cannot be kept into a file of its own; never into memory.
  Result<Fd> fetch(const Descriptor& layer) {
    auto room = cache_.room_for(layer.digest);
    Fd scratch;
    if (!room) {
      auto made = make_scratch_file();
      if (!made) return made;
      scratch = std::move(*made);
    }
    if (auto done = client_.get_blob(layer, room ? room->fd() : scratch.get()); !done)
      return fail(std::move(done.error()));
    if (!room) {
      if (::lseek(scratch.get(), 0, SEEK_SET) != 0) return fail_errno("the copy", "cannot be read");
      return scratch;
    }
    auto file = open_file("/proc/self/fd/" + std::to_string(room->fd()), O_RDONLY);
    static_cast<void>(room->commit());
    return file;
  }

  Result<std::string> manifest(const Reference& at) {
    if (!at.digest.empty())
      if (auto known = cache_.manifest(at.digest)) return std::move(*known);
    auto got = client_.get_manifest(at.version());
    if (got) {
      cache_.keep(got->text);
      if (at.digest.empty()) cache_.note(at.text(), got->descriptor.digest);
      return std::move(got->text);
    }
    return offline(at.text(), std::move(got.error()));
  }

  Result<std::string> attached(const std::string& image) {
    const auto digest = sha256_digest(image);
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
    auto known = digest ? cache_.manifest(*digest) : std::nullopt;
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

Result<Fd> make_scratch_file() {
  const char* parent = std::getenv("TMPDIR");
  std::string path =
      std::string(parent != nullptr && *parent == '/' ? parent : "/tmp") + "/heddle-oci-XXXXXX";
  Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) return fail_errno(path, "cannot be made");
  ::unlink(path.c_str());
  return file;
}

Result<std::string> push(const Reference& to, int content, const PushOptions& options) {
  RegistryClient client(to);
  // The tag of an attached artifact would be the image's own `latest`.
  const auto tag = options.attach_to.empty() || to.tagged ? to.tag : std::string();
  if (!tag.empty()) {
    const auto old = client.get_manifest(tag);
    if (!old && old.error().code() != ENOENT) return fail(old.error());
    const auto json = old ? parse_json(old->text) : Json();
    if (old && (!json.is_object() || json.value("artifactType", Json()) != options.type))
      return fail(Error::with_code(EEXIST, to.text(), "cannot push",
                                   "the tag names something else there", "choose another tag"));
  }
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
      client.put_manifest(manifest.dump(), kManifestType, tag, options.type, subject.digest);
  if (!done) return fail(done.error());
  return done->digest;
}

Result<Fd> pull(const Reference& from, const std::string& type, const std::string& cache) {
  return Puller(from, type, cache).run();
}

}  // namespace heddle::registry
