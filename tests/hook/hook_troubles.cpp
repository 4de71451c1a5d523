// SPDX-License-Identifier: MIT
#include "tests/hook/hook_troubles.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

const std::vector<HookTrouble>& hook_troubles() {
  static const std::vector<HookTrouble> kTroubles = {
      {"no fs-resolve", "fs-resolve",
       [](ContainerWorld& w, Json&) { fs::remove(w.path("stage/bin/fs-resolve")); }},
      {"fs-resolve fails", "libx.so: cannot read: damaged (look)",
       [](ContainerWorld& w, Json&) {
         w.answer_text("", 3, "fs-resolve: libx.so: cannot read: damaged\nhint: look\n");
       }},
      {"an incompatible program", "the reason",
       [](ContainerWorld& w, Json&) { w.answer_incompatible("the reason", "the remedy"); }},
      {"too much", "too much",
       [](ContainerWorld& w, Json&) { w.answer_text(std::string(17U << 20, ' '), 0); }},
      {"a target that is not there", "/usr/lib/none.so: cannot open it in the container",
       [](ContainerWorld& w, Json&) { w.answer_swap_with("/binds/0/target", "/usr/lib/none.so"); }},
      {"a source that is not there", "none.so: cannot copy its mount",
       [](ContainerWorld& w, Json&) { w.answer_swap_with("/binds/0/source", "none.so"); }},
      {"no map", ".map: cannot open",
       [](ContainerWorld& w, Json&) { fs::remove(w.path("stage/bin/answer.map")); }},
      {"a damaged map", ".map",
       [](ContainerWorld& w, Json&) {
         write_text_file(w.path("stage/bin/answer.map"), std::string(8192, 'x'));
       }},
      {"a host's file that has gone", "host/libmpi.so.12",
       [](ContainerWorld& w, Json&) { fs::remove(w.path("host/libmpi.so.12")); }},
      {"no fs-mount", "fs-mount",
       [](ContainerWorld& w, Json&) { fs::remove(w.path("stage/bin/fs-mount")); }},
      {"fs-mount dies", "fs-mount: did not start",
       [](ContainerWorld& w, Json&) { w.replace_program("fs-mount", "kill -9 $$\n"); }},
      {"a cache that others write to", "cache: cannot be trusted: others may write to it",
       [](ContainerWorld& w, Json&) {
         fs::create_directories(w.path("cache"));
         ::chmod(w.path("cache").c_str(), 0777);
       }},
      {"a mount point that the image lacks", "cannot mount there",
       [](ContainerWorld& w, Json&) { w.answer_swap_with("/mount_point", "/usr/heddle"); }},
      {"no /dev/fuse",
       "/dev/fuse: cannot open: No such file or directory (load the module",
       [](ContainerWorld&, Json&) {},
       {HEDDLE_IN_WORLD, "--fuse", "absent", "--"}},
      {"a device cgroup that forbids /dev/fuse",
       "/dev/fuse: cannot open: Operation not permitted (a device cgroup forbids it",
       [](ContainerWorld& w, Json& config) {
         config["hooks"] = {{"createContainer", {w.hook_json("createContainer")}}};
         config["linux"]["resources"]["devices"] =
             Json::array({Json{{"allow", false}, {"access", "rwm"}}});
       }},
      {"an annotation that is misspelt", "heddle.mpi: invalid annotation: it is 'hots'",
       [](ContainerWorld&, Json& config) { config["annotations"]["heddle.mpi"] = "hots"; }},
      {"an annotation that there is not",
       "heddle.prog: invalid annotation: there is no such annotation",
       [](ContainerWorld&, Json& config) { config["annotations"]["heddle.prog"] = "/bin/app"; }},
      {"a program that is no path", "heddle.program: invalid annotation",
       [](ContainerWorld&, Json& config) { config["annotations"]["heddle.program"] = "app"; }},
  };
  return kTroubles;
}

}  // namespace heddle::test
