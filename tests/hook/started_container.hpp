// SPDX-License-Identifier: MIT
#pragma once

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// A runtime's `run` in the background, with its output in a file.
class StartedContainer {
 public:
  StartedContainer(const Runtime& runtime, const std::string& bundle, const std::string& id)
      : runtime_(runtime), id_(id), out_(bundle + "/out") {
    const auto out = value_or_throw(open_file(out_, O_RDWR | O_CREAT | O_TRUNC));
    auto argv = runtime.run_command(bundle, id);
    argv.insert(argv.begin(), "env");
    child_.emplace(value_or_throw(
        spawn("/usr/bin/env", argv, {{{out.get(), STDOUT_FILENO}, {out.get(), STDERR_FILENO}}})));
  }
  std::string text() const { return read_file(out_).value_or(""); }
  bool says(const std::string& text) const {
    return wait_until(20s, [&] { return this->text().find(text) != std::string::npos; });
  }
  Child& runtime_process() { return *child_; }
  /// The pid of the container's init.
  int init() const {
    const auto state = run(runtime_.command({"state", id_}));
    return Json::parse(state.out).at("pid");
  }
  std::optional<int> ends(std::chrono::milliseconds limit) {
    return value_or_throw(child_->wait_for(limit));
  }

 private:
  const Runtime& runtime_;
  std::string id_;
  std::string out_;
  std::optional<Child> child_;
};

}  // namespace heddle::test
