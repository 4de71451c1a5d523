// SPDX-License-Identifier: MIT
#include "resolver/policy/decide.hpp"

#include <algorithm>
#include <cerrno>

#include "resolver/policy/decider.hpp"
#include "resolver/policy/left_behind.hpp"

namespace heddle {
namespace {

constexpr int kRounds = 64;  // a round takes one more library from the host

}  // namespace

Result<Decision> Decider::run() {
  out_.programs = options_.programs;
  out_.mount_point = options_.mount_point;
  if (auto read = read_programs(); !read) return fail(std::move(read.error()));
  if (ended_) return std::move(out_);
  auto glibc = read_glibc_family(host_.world());
  if (!glibc) return fail(std::move(glibc.error()));
  glibc_ = std::move(*glibc);
  host_.set_loader(glibc_.loader);
  out_.host_glibc = glibc_.version;
  out_.container_glibc = "2." + std::to_string(inside_.loader().glibc_minor);
  out_.interpreter = inside_.loader().interpreter;
  out_.interpreter_file = inside_.world().real_path(out_.interpreter);
  stack_ = find_container_stack(inside_, inside_symbols_);
  if (options_.mpi_wanted && !find_stack_copies(inside_, inside_symbols_, stack_))
    out_.warnings.push_back(
        "the image has more files than are looked at, or can be: an MPI in a folder of its own may "
        "be left as it is");
  out_.asked = stack_.watched;
  if (!choose_mpi() || !pass_gate()) return std::move(out_);
  if (auto taken = take_host_libraries(); !taken) return fail(std::move(taken.error()));
  if (!ended_) decide_sides();
  return std::move(out_);
}

Result<void> Decider::read_programs() {
  std::string reason;
  for (const auto& name : options_.programs) {
    auto added = inside_.add_program(name, search_, reason);
    if (added) continue;
    if (added.error().code() == ENOTSUP) {
      refuse(added.error().message() + "; the host's MPI needs glibc",
             "use an image that is built on glibc");
      return {};
    }
    if (added.error().code() == ENOENT && inside_.world().real_path(name).empty())
      return fail_errno(name, "the container has no such program", ENOENT,
                        "name it as the container does: --program, the annotation heddle.program");
    return fail(std::move(added.error()));
  }
  if (inside_.programs().empty()) nothing(reason);
  return {};
}

void Decider::decide_sides() {
  SideChoice sides(host_, inside_, inside_symbols_, stack_);
  if (match_.install != nullptr) take_bindings(*match_.install, sides);
  for (const auto& root : options_.roots)
    sides.force(root.library.soname, root.aliases, container_file(root.aliases),
                "the host's is asked for");
  Placement placement(inside_, host_.world(), stack_, glibc_, search_, options_.mount_point);
  for (int round = 0; round < kRounds; ++round) {
    if (const auto conflict = sides.settle(folders_); !conflict.empty()) {
      refuse(conflict);
      return;
    }
    const auto glibc = choose_glibc(glibc_, inside_, sides.taken_files());
    if (!glibc.conflict.empty()) {
      refuse(glibc.conflict, "use an image whose glibc is at least " + glibc_.version);
      return;
    }
    const auto trouble = placement.place(sides, glibc);
    if (!trouble.conflict.empty()) {
      refuse(trouble.conflict +
             " (host: " + (out_.mpi ? out_.mpi->family + " " + out_.mpi->version + ", " : "") +
             "glibc " + out_.host_glibc + "; container: glibc " + out_.container_glibc + ")");
      return;
    }
    if (!trouble.flip.empty() && sides.flip_to_host(trouble.flip, trouble.why)) continue;
    finish(sides, glibc, placement);
    return;
  }
  refuse("the libraries of host and container cannot be told apart in " + std::to_string(kRounds) +
         " rounds");
}

void Decider::finish(const SideChoice& sides, const GlibcChoice& glibc,
                     const Placement& placement) {
  out_.outcome = Outcome::swap;
  out_.glibc = glibc.taken;
  out_.glibc_why = glibc.why;
  out_.verdicts = glibc.verdicts;
  for (const auto* pick : sides.picks())
    out_.verdicts.push_back({pick->host.soname, pick->taken, pick->host.path,
                             pick->container ? pick->container->path : "", pick->rule, pick->why});
  std::sort(out_.verdicts.begin(), out_.verdicts.end(),
            [](const Verdict& a, const Verdict& b) { return a.soname < b.soname; });
  const auto warn = [&](const std::vector<std::string>& lines) {
    out_.warnings.insert(out_.warnings.end(), lines.begin(), lines.end());
  };
  warn(sides.warnings());
  warn(glibc.warnings);
  warn(left_behind(inside_, inside_symbols_, host_.symbols(), sides, stack_));
  placement.write(out_);
}

Result<Decision> decide(OsWorld& host, OsWorld& inside, const DecideOptions& options) {
  return Decider(host, inside, options).run();
}

}  // namespace heddle
