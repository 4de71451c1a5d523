// SPDX-License-Identifier: MIT
#include "fuseovl/files/file_work.hpp"

#include "fuseovl/session/shared.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

std::string_view path_of(std::size_t) { return "/x"; }

TEST(FileWork, killed_process_is_an_error) {
  EXPECT_THROW(work_on_files(5, {.limit = 60s,
                                 .work =
                                     [](std::size_t piece, WorkPlace&) {
                                       if (piece == 3) ::raise(SIGKILL);
                                     },
                                 .path_of = path_of}),
               Error);
}

TEST(FileWork, all_files_arrive_when_one_packet_cannot_hold_them) {
  const auto before = std::filesystem::current_path();
  auto results = work_on_files(
      600, {.limit = 60s,
            .work = [](std::size_t, WorkPlace& place) { place.give(open_file(".", 0).value()); },
            .path_of = path_of});
  for (const auto& result : results)
    EXPECT_EQ(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(result.file.get())),
              "/");
  EXPECT_EQ(std::filesystem::current_path(), before);
}

}  // namespace
}  // namespace heddle::test
