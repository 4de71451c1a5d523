// SPDX-License-Identifier: MIT
#include "container-hooks/packed_decision.hpp"

#include <charconv>

namespace heddle {
namespace {

constexpr std::string_view kFormat = "heddle packed decision 7 " HEDDLE_VERSION;

/// Texts and numbers one behind the other: `5:a text`, so that a text may hold any byte.
class Packer {
 public:
  void operator()(const std::string& text) { out_ += std::to_string(text.size()) + ":" + text; }
  void operator()(Outcome outcome) { number(static_cast<std::size_t>(outcome)); }
  void operator()(const Bind& bind) {
    (*this)(bind.source);
    (*this)(bind.target);
    (*this)(bind.why);
  }
  void operator()(const KeptFile& file) {
    (*this)(file.name);
    (*this)(file.origin);
  }
  void operator()(const std::pair<std::string, std::string>& variable) {
    (*this)(variable.first);
    (*this)(variable.second);
  }
  void operator()(const Verdict& verdict) {
    (*this)(verdict.soname);
    number(verdict.from_host ? 1 : 0);
    (*this)(verdict.why);
  }
  template <class T>
  void operator()(const std::vector<T>& list) {
    number(list.size());
    for (const auto& entry : list) (*this)(entry);
  }
  void number(std::size_t value) { out_ += std::to_string(value) + ":"; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
  void operator()(std::string& text) {
    const auto size = number();
    if (size > rest_.size()) return give_up();
    text = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  void operator()(Outcome& outcome) {
    const auto value = number();
    if (value > static_cast<std::size_t>(Outcome::incompatible)) return give_up();
    outcome = static_cast<Outcome>(value);
  }
  void operator()(Bind& bind) {
    (*this)(bind.source);
    (*this)(bind.target);
    (*this)(bind.why);
  }
  void operator()(KeptFile& file) {
    (*this)(file.name);
    (*this)(file.origin);
  }
  void operator()(std::pair<std::string, std::string>& variable) {
    (*this)(variable.first);
    (*this)(variable.second);
  }
  void operator()(Verdict& verdict) {
    (*this)(verdict.soname);
    verdict.from_host = number() == 1;
    (*this)(verdict.why);
  }
  template <class T>
  void operator()(std::vector<T>& list) {
    for (auto count = number(); count > 0; --count) {
      if (rest_.empty()) return give_up();
      (*this)(list.emplace_back());
    }
  }
  std::size_t number() {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(rest_.begin(), rest_.end(), value);
    if (error != std::errc() || end == rest_.end() || *end != ':') {
      give_up();
      return 0;
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.begin()) + 1);
    return value;
  }
  bool is_at_its_end() const { return !failed_ && rest_.empty(); }

 private:
  void give_up() {
    failed_ = true;
    rest_ = {};
  }
  std::string_view rest_;
  bool failed_ = false;
};

/// One list of the members for both directions, which the compiler holds complete.
template <class Visitor, class Packed>
void visit(Visitor& visitor, Packed& packed) {
  auto& [decision, contents, map_id] = packed;
  auto& [outcome, reason, hint, mount_point, programs, interpreter, host_mpi, binds, kept,
         directories, unreachable, environment, verdicts, warnings, image_files] = decision;
  visitor(contents);
  visitor(map_id);
  visitor(outcome);
  visitor(reason);
  visitor(hint);
  visitor(mount_point);
  visitor(programs);
  visitor(interpreter);
  visitor(host_mpi);
  visitor(binds);
  visitor(kept);
  visitor(directories);
  visitor(unreachable);
  visitor(environment);
  visitor(verdicts);
  visitor(warnings);
  visitor(image_files);
}

}  // namespace

std::string pack(const PackedDecision& packed) {
  Packer packer;
  packer(std::string(kFormat));
  visit(packer, packed);
  return packer.take();
}

Result<PackedDecision> unpack(std::string_view bytes, const std::string& name) {
  PackedDecision out;
  Unpacker unpacker(bytes);
  std::string format;
  unpacker(format);
  visit(unpacker, out);
  if (format != kFormat || !unpacker.is_at_its_end())
    return fail(name, "cannot use it", "it is damaged or of another version");
  return out;
}

}  // namespace heddle
