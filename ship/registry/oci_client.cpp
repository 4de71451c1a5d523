// SPDX-License-Identifier: MIT
//
// The helper libexec/heddle/oci-client, which compat-gen, compat-check and fs-resolve start:
//   oci-client push --type T [--title NAME] [--attach IMAGE] REF   stdin: content, stdout: digest
//   oci-client pull --type T [--out NAME] REF                      stdout: content, all or nothing
//   oci-client pull --no-cache --type T REF                        stdout: a file, checked in place
// Its exit status is 0, 2 or 3; messages begin with the name in $HEDDLE_PROGRAM.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/command_line.hpp"
#include "base/content_hash.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/run_main.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "ship/registry/oci_helper.hpp"
#include "ship/registry/registry_client.hpp"

namespace heddle::registry {
namespace {

/// Larger content is refused.
constexpr std::uint64_t kMostContent = std::uint64_t{4} << 30;
constexpr const char* kEmptyType = "application/vnd.oci.empty.v1+json";
/// Of compatibility artifacts, whose readers refuse larger ones.
constexpr std::uint64_t kMostArtifact = std::uint64_t{64} << 20;

/// A directory with pulled blobs and manifests (`sha256/<hex>`) and the digests of tags
/// (`refs/<hash>`). Many processes may use it: files appear whole, and their hash is checked when
/// they are read. A cache that cannot be written stores nothing, which is no failure.
class BlobCache {
 public:
  /// $XDG_CACHE_HOME/heddle/oci, or ~/.cache/heddle/oci; without either, unless `used`, or where
  /// another user may change it (sudo may keep a user's HOME), it stores nothing.
  explicit BlobCache(bool used) {
    if (used) directory_ = below_home("XDG_CACHE_HOME", "/.cache", "/heddle/oci");
    if (!directory_.empty() && !check_trusted_directory(directory_)) directory_.clear();
  }
  /// The file, at offset 0.
  std::optional<Fd> blob(const std::string& digest) const {
    auto file = open_own(blob_path(digest));
    if (!file) return std::nullopt;
    const auto hash = hash_file(file->get(), "cache");
    if (hash && "sha256:" + hash->hex() == digest) return file;
    ::unlink(blob_path(digest).c_str());  // damaged: fetched anew
    return std::nullopt;
  }
  std::optional<std::string> manifest(const std::string& digest) const {
    return text_of(blob(digest), kMostManifest);
  }
  void keep(const std::string& content) const { write(blob_path(digest_of(content)), content); }
  /// A file to write a blob to and to commit; nullopt: the cache cannot be written.
  std::optional<AtomicFile> create_blob(const std::string& digest) const {
    return create(blob_path(digest));
  }
  void note(const std::string& reference, const std::string& digest) const {
    write(note_path(reference), digest);
  }
  std::optional<std::string> noted(const std::string& reference) const {
    auto digest = text_of(open_own(note_path(reference)), 128);
    return digest && is_digest(*digest) ? digest : std::nullopt;
  }

 private:
  /// Only a file of this user: another could change it between its hash and its use.
  std::optional<Fd> open_own(const std::string& path) const {
    auto file = directory_.empty() ? fail("cache", "there is none") : open_regular(path);
    struct stat status {};
    if (!file || ::fstat(file->get(), &status) != 0 || status.st_uid != ::geteuid() ||
        (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
      return std::nullopt;
    return std::move(*file);
  }
  std::optional<AtomicFile> create(const std::string& path) const {
    if (directory_.empty()) return std::nullopt;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    auto file = AtomicFile::create(path, 0600);  // open_own() refuses what others may write
    if (!file) return std::nullopt;
    return std::move(*file);
  }
  void write(const std::string& path, const std::string& content) const {
    auto file = create(path);
    if (file && file->write(content)) static_cast<void>(file->commit());
  }
  static std::optional<std::string> text_of(const std::optional<Fd>& file, std::size_t most) {
    auto text = file ? read_all(file->get(), "cache", most) : fail("cache", "has no such file");
    if (!text) return std::nullopt;
    return std::move(*text);
  }
  /// `digest` is one (is_digest()).
  std::string blob_path(const std::string& digest) const {
    return directory_ + "/sha256/" + digest.substr(7);
  }
  std::string note_path(const std::string& reference) const {
    return directory_ + "/refs/" + digest_of(reference).substr(7);
  }

  std::string directory_;
};

/// A file without a name in $TMPDIR.
Result<Fd> make_scratch_file() {
  const char* parent = std::getenv("TMPDIR");
  std::string path =
      std::string(parent != nullptr && *parent == '/' ? parent : "/tmp") + "/heddle-oci-XXXXXX";
  Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) return fail_errno(path, "cannot be made");
  ::unlink(path.c_str());
  return file;
}

/// The manifest's first layer of `type`; an empty digest: it has none.
Result<Descriptor> layer_of(const std::string& text, const std::string& type,
                            const std::string& where) {
  const auto wrong = [&](const char* reason) {
    return fail(Error::with_code(EBADMSG, where, "damaged manifest", reason));
  };
  const auto json = parse_json(text);
  const auto most = type == kArtifactMediaType ? kMostArtifact : kMostContent;
  if (!json.is_object()) return wrong("not JSON");
  for (const auto& layer : list_member(json, "layers")) {
    if (text_member(layer, "mediaType") != type) continue;
    const auto digest = text_member(layer, "digest");
    const auto size = layer.value("size", Json());
    if (!is_digest(digest)) return wrong("its digest");
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > most) return wrong("its size");
    return Descriptor{type, digest, size.get<std::uint64_t>()};
  }
  return Descriptor{};
}

/// Pulls the artifact of media type `type` at `from`, or the one attached to the image there.
/// Content is checked against its digest and cached. A cached digest needs no registry; a cached
/// tag is used only when the registry cannot be reached, with a warning.
class Puller {
 public:
  /// `out`: without the cache, the file that takes the content, called `name`; -1: with the cache.
  Puller(const Reference& from, const std::string& type, int out, const std::string& name)
      : from_(from), type_(type), client_(from), out_(out), name_(name), cache_(out < 0) {}

  /// The content, at offset 0.
  Result<Fd> run() {
    const auto text = TRY(manifest(from_));
    auto layer = TRY(layer_of(text, type_, from_.text()));
    if (layer.digest.empty()) {  // an image: what is attached to it?
      const auto other = TRY(attached(text));
      layer = TRY(layer_of(other, type_, from_.text()));
    }
    if (layer.digest.empty()) return nothing_here();
    if (auto known = cache_.blob(layer.digest)) return std::move(*known);
    return fetch(layer);
  }

 private:
  tl::unexpected<Error> nothing_here() {
    return fail(Error::with_code(ENOENT, from_.text(), "cannot pull",
                                 "there is nothing of type " + type_ + ", nor attached to it"));
  }

  /// To the cache, else to a scratch file; never to memory.
  Result<Fd> fetch(const Descriptor& layer) {
    if (out_ >= 0) return client_.get_blob(layer, out_, name_);
    auto cached = cache_.create_blob(layer.digest);
    Fd scratch;
    if (!cached) scratch = TRY(make_scratch_file());
    auto content = TRY(client_.get_blob(layer, cached ? cached->fd() : scratch.get()));
    if (cached) static_cast<void>(cached->commit());
    return content;
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

  /// The cached manifest of `key`, if `error` is that the registry cannot be reached.
  Result<std::string> offline(const std::string& key, Error error) {
    if (!is_unreachable(error.code())) return fail(std::move(error));
    const auto digest = cache_.noted(key);
    auto known = digest ? cache_.manifest(*digest) : std::nullopt;
    if (!known) return fail(std::move(error));
    if (!warned_)
      warn(fmt::format("{}: using the copy of {} in the cache", error.message(), *digest));
    warned_ = true;
    return std::move(*known);
  }

  const Reference& from_;
  const std::string& type_;
  RegistryClient client_;
  int out_;
  const std::string& name_;
  BlobCache cache_;
  bool warned_ = false;
};

struct PushOptions {
  std::string type;       ///< media type of the content; also the artifactType
  std::string title;      ///< the file's name for people
  std::string attach_to;  ///< tag or digest of an image in the same repository; empty: none
};

/// Pushes `content` as an OCI artifact with one layer. Result: its manifest's digest. An attached
/// artifact gets a tag only if `to` names one. Fails as the registry does, and with EEXIST when the
/// tag names something of another type, usually an image. The manifest is pushed last.
Result<std::string> push(const Reference& to, std::string_view content,
                         const PushOptions& options) {
  RegistryClient client(to);
  // The default tag, `latest`, would be the image's own.
  const auto tag = options.attach_to.empty() || to.tagged ? to.tag : std::string();
  if (!tag.empty()) {
    const auto old = client.get_manifest(tag, "cannot push");
    if (!old && old.error().code() != ENOENT) return fail(old.error());
    if (old && text_member(parse_json(old->text), "artifactType") != options.type)
      return fail(Error::with_code(EEXIST, to.text(), "cannot push",
                                   "the tag names another type of artifact", "choose another tag"));
  }
  Json manifest = {
      {"schemaVersion", 2}, {"mediaType", kManifestType}, {"artifactType", options.type}};
  Descriptor subject;
  if (!options.attach_to.empty())
    subject = TRY(client.get_manifest(options.attach_to, "cannot push")).descriptor;
  const auto config = TRY(client.put_blob("{}", kEmptyType));
  const auto layer = TRY(client.put_blob(content, options.type));
  const auto descriptor = [](const Descriptor& one) {
    return Json{{"mediaType", one.media_type}, {"digest", one.digest}, {"size", one.size}};
  };
  manifest["config"] = descriptor(config);
  Json one = descriptor(layer);
  one["annotations"] = {{"org.opencontainers.image.title", options.title}};
  manifest["layers"] = Json::array({std::move(one)});
  if (!subject.digest.empty()) manifest["subject"] = descriptor(subject);
  return TRY(client.put_manifest(manifest.dump(), kManifestType, tag, options.type, subject.digest))
      .digest;
}

struct Options {
  PushOptions push;
  std::string reference, attach;
  std::string out = "stdout";  ///< what standard output is called
  bool no_cache = false;
};

int run_push(Options o) {
  auto to = value_or_throw(parse_reference(o.reference));
  if (!to.digest.empty()) throw Error(o.reference, "cannot push to a digest", "", "give a tag");
  if (!o.attach.empty()) {
    const auto image = value_or_throw(parse_reference(o.attach));
    if (image.host != to.host || image.repository != to.repository)
      throw Error(o.attach, "cannot attach to it",
                  "it is in another repository than " + o.reference);
    o.push.attach_to = image.version();
  }
  // Not mapped: a file truncated meanwhile would end this program by SIGBUS.
  const auto content = value_or_throw(read_all(STDIN_FILENO, "stdin", kMostContent));
  const auto digest = value_or_throw(push(to, content, o.push));
  const auto line = fmt::format("{}/{}@{}\n", to.host, to.repository, digest);
  value_or_throw(write_all(STDOUT_FILENO, line, "stdout"));
  return exit_done;
}

int run_pull(const Options& o) {
  const auto from = value_or_throw(parse_reference(o.reference));
  struct stat status {};
  if (o.no_cache && (::fstat(STDOUT_FILENO, &status) != 0 || !S_ISREG(status.st_mode)))
    throw Error("stdout", "is not a regular file", "", "pull without --no-cache");
  const auto content =
      value_or_throw(Puller(from, o.push.type, o.no_cache ? STDOUT_FILENO : -1, o.out).run());
  if (o.no_cache) return exit_done;
  ssize_t sent = 0;
  do {
    sent = ::sendfile(STDOUT_FILENO, content.get(), nullptr, std::size_t{1} << 30);
  } while (sent > 0 || (sent < 0 && errno == EINTR));
  if (sent < 0) throw Error::from_errno(o.out, "cannot write");
  return exit_done;
}

int oci_client(int argc, const char* const* argv) {
  CLI::App app("Push and pull artifacts of OCI registries.", "oci-client");
  app.set_version_flag("--version", "oci-client (heddle) " HEDDLE_VERSION);
  app.require_subcommand(1);
  Options o;
  auto* push = app.add_subcommand("push", "Standard input to a registry");
  auto* pull = app.add_subcommand("pull", "From a registry to standard output");
  for (auto* sub : {push, pull}) {
    sub->add_option("--type", o.push.type, "Media type")->required();
    sub->add_option("REF", o.reference, "HOST[:PORT]/REPOSITORY[:TAG]")->required();
  }
  pull->add_flag("--no-cache", o.no_cache, "Write to standard output, a file, only");
  pull->add_option("--out", o.out, "What messages call standard output");
  push->add_option("--title", o.push.title, "The file's name");
  push->add_option("--attach", o.attach, "Image in the same repository that it is about");
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return push->parsed() ? run_push(o) : run_pull(o);
}

}  // namespace
}  // namespace heddle::registry

int main(int argc, char** argv) {
  const char* name = std::getenv("HEDDLE_PROGRAM");
  return heddle::run_main(name != nullptr ? name : "oci-client",
                          [&] { return heddle::registry::oci_client(argc, argv); });
}
