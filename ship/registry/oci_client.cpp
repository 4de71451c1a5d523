// SPDX-License-Identifier: MIT
#include "ship/registry/oci_client.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "ship/registry/transfer.hpp"

namespace heddle {
namespace {

struct Options {
  registry::PushOptions push;
  std::string type, reference, attach;
};

/// To the end of `from`, a piece at a time.
void copy_all(int from, const char* from_name, int to, const char* to_name) {
  std::vector<char> piece(std::size_t{1} << 20);
  for (std::uint64_t sum = 0;;) {
    const auto got = ::read(from, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error::from_errno(from_name, "cannot read");
    if (got == 0) return;
    if ((sum += static_cast<std::uint64_t>(got)) > registry::kMostContent)
      throw Error::from_errno(from_name, "cannot read", EFBIG);
    value_or_throw(write_all(to, {piece.data(), static_cast<std::size_t>(got)}, to_name));
  }
}

int run_push(Options o) {
  auto to = value_or_throw(registry::parse_reference(o.reference));
  if (!to.digest.empty()) throw Error(o.reference, "cannot push", "a digest is no place for it");
  o.push.type = o.type;
  if (!o.attach.empty()) {
    const auto image = value_or_throw(registry::parse_reference(o.attach));
    if (image.host != to.host || image.repository != to.repository)
      throw Error(o.attach, "cannot attach to it",
                  "it is in another repository than " + o.reference);
    o.push.attach_to = image.version();
  }
  // As a rule it is a file already (a memfd of our caller's).
  struct stat st {};
  Fd copy;
  if (::fstat(STDIN_FILENO, &st) != 0 || !S_ISREG(st.st_mode)) {
    copy = value_or_throw(registry::make_scratch_file());
    copy_all(STDIN_FILENO, "stdin", copy.get(), "the copy");
  }
  const auto digest = value_or_throw(registry::push(to, copy ? copy.get() : STDIN_FILENO, o.push));
  const auto line = fmt::format("{}/{}@{}\n", to.host, to.repository, digest);
  value_or_throw(write_all(STDOUT_FILENO, line, "stdout"));
  return exit_done;
}

int run_pull(const Options& o) {
  const auto from = value_or_throw(registry::parse_reference(o.reference));
  const auto content = value_or_throw(registry::pull(from, o.type, registry::default_cache()));
  copy_all(content.get(), "the copy", STDOUT_FILENO, "stdout");
  return exit_done;
}

}  // namespace

int oci_client(int argc, const char* const* argv) {
  const char* name = std::getenv("HEDDLE_PROGRAM");
  set_program_name(name != nullptr ? name : "oci-client");
  CLI::App app("Push and pull artifacts of OCI registries.", "oci-client");
  app.require_subcommand(1);
  Options o;
  auto* push = app.add_subcommand("push", "Standard input to a registry");
  auto* pull = app.add_subcommand("pull", "From a registry to standard output");
  for (auto* sub : {push, pull}) {
    sub->add_option("--type", o.type, "Media type")->required();
    sub->add_option("REF", o.reference, "HOST[:PORT]/REPOSITORY[:TAG]")->required();
  }
  push->add_option("--title", o.push.title, "The file's name");
  push->add_option("--attach", o.attach, "Image in the same repository that it is about");
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  try {
    return push->parsed() ? run_push(o) : run_pull(o);
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
