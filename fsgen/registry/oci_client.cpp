// SPDX-License-Identifier: MIT
#include "fsgen/registry/oci_client.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "fsgen/registry/transfer.hpp"

namespace heddle {
namespace {

struct Options {
  registry::PushOptions push;
  std::string type, reference, attach;
};

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
  const auto content = value_or_throw(read_all(STDIN_FILENO, "stdin", std::size_t{4} << 30));
  const auto digest = value_or_throw(registry::push(to, content, o.push));
  const auto line = fmt::format("{}/{}@{}\n", to.host, to.repository, digest);
  value_or_throw(write_all(STDOUT_FILENO, line, "stdout"));
  return exit_done;
}

int run_pull(const Options& o) {
  const auto from = value_or_throw(registry::parse_reference(o.reference));
  const auto content = value_or_throw(registry::pull(from, o.type, registry::default_cache()));
  value_or_throw(write_all(STDOUT_FILENO, content, "stdout"));
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
