// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/read_at.hpp"
#include "fuseovl/files/stage_folder.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

inline constexpr std::uint64_t kDefaultStageBudget = std::uint64_t{4} << 30;

struct StageOptions {
  std::string directory;  ///< empty: nothing is staged
  std::uint64_t budget = kDefaultStageBudget;
};

/// Copies of a mount's files on the node's own storage (stage_folder.hpp). A process of its own
/// makes them, or finds and checks those that are there, while the mount is served already; those
/// who serve read from each copy as soon as it is whole, and from the origin where there is none.
/// What goes wrong here costs the copy and no more.
class Staging {
 public:
  /// nullptr, and a warning, when there can be no copies. `content` names what is served.
  static std::unique_ptr<Staging> create(const StageOptions& options, const MapContent& content,
                                         const Origins& origins);

  /// What a process that serves or supervises has to keep open.
  std::vector<int> descriptors() const;
  /// Where the copies are.
  const std::string& folder() const { return folder_.path(); }

  /// Forks the process that stages; a child of the caller, that ends with it or when all is done.
  /// It keeps only our descriptors and `origins` open. A failure is said.
  std::optional<pid_t> start(const Origins& origins, const std::vector<std::string>& paths);

  bool has(ObjectId object) const;
  /// Reads from the object's copy, as read_at(). nullopt: there is none that can be read now.
  std::optional<tl::expected<std::size_t, int>> read(ObjectId object, std::span<char> into,
                                                     off_t offset, MayBlock block);

  enum class State : std::uint8_t { running, done, incomplete };
  State state() const { return progress_->state; }
  std::uint64_t objects() const { return progress_->objects; }
  std::uint64_t bytes() const { return progress_->bytes; }

 private:
  /// What can be staged: an object whose content is the map's.
  struct Item {
    ObjectId object = 0;
    std::uint64_t size = 0;
    ContentHash hash;
  };
  /// An object's copy, as it was found right.
  struct Slot {
    std::atomic<bool> ready;
    std::uint64_t ino;  ///< the following are written before `ready`, once
    std::int64_t mtime_ns;
  };
  struct Progress {
    std::atomic<State> state = State::running;
    std::atomic<std::uint64_t> objects = 0;
    std::atomic<std::uint64_t> bytes = 0;
  };
  enum class Step : std::uint8_t { ready, left_out, later, stop };

  Staging(StageFolder folder, Fd announced, std::uint64_t budget, std::size_t objects);
  [[noreturn]] void live(const Origins& origins, const std::vector<std::string>& paths);
  bool stage_all(const Origins& origins, const std::vector<std::string>& paths);
  Step stage(const Item& item, const Origin& origin, const std::string& path);
  bool make_room(std::uint64_t size);
  void publish(const Item& item, const FileStamp& stamp);

  StageFolder folder_;
  Fd announced_;
  std::uint64_t budget_;
  std::uint64_t room_ = 0;  ///< bytes that may be copied before the folder is looked at again
  bool in_memory_ = false;
  std::vector<Item> items_;         ///< smallest first
  std::vector<std::string> names_;  ///< by ObjectId
  SharedArray<Slot> slots_;         ///< by ObjectId
  Shared<Progress> progress_;
};

}  // namespace heddle
