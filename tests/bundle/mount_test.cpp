// SPDX-License-Identifier: MIT
// Bundles that are mounted as they are, with real programs.
#include <sys/stat.h>

#include "tests/bundle/bundle_support.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

class BundleMount : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    resolve_ = staged_program("fs-resolve");
    gen_ = staged_program("fs-gen");
    if (resolve_.empty() || gen_.empty()) HEDDLE_SKIP("fs-resolve or fs-gen is not installed");
    for (int i = 0; i < 40; ++i)
      add("pkg" + std::to_string(i) + "/mod.py", some_bytes(1000 + 977U * i, i));
    add("big.bin", some_bytes(5'000'000, 77));
    add("empty", "");
    for (const char* name : {"liba.so.1", "libb.so.1"}) {
      write_text(dir_ / ("lib/" + std::string(name)), some_bytes(300'000, name[3]));
      maker_.add_name("v", name, dir_ / ("lib/" + std::string(name)));
    }
    fs::create_symlink("big.bin", tree_ + "/link");
    maker_.add_tree(tree_);
    maker_.write(map_);
  }

  void add(const std::string& name, const std::string& text) {
    write_text(tree_ + "/" + name, text);
    files_[name] = text;
  }
  void pack(const Strings& more = {}) {
    run_checked(Strings{resolve_, "pack", map_, "-o", bundle_} + more);
  }
  /// The origin is no longer there.
  void hide_origin() {
    fs::rename(tree_, tree_ + ".gone");
    fs::rename(dir_ / "lib", dir_ / "lib.gone");
  }
  /// Damages the frame that has the place of a file's byte.
  void damage(const std::string& file, std::uint64_t offset) {
    const auto reader = value_or_throw(MapReader::open(bundle_));
    const auto& trees = value_or_throw(reader.trees());
    const auto node = trees[0].second.find_path(file).value();
    const auto place = reader.bundle()->trees[0][node] + offset;
    const auto& frame = reader.bundle()->frames[place / kFrameSize];
    const auto opened = value_or_throw(open_file(bundle_, O_RDWR));
    ASSERT_EQ(::pwrite(opened.get(), "damage", 6, static_cast<off_t>(frame.offset + 20)), 6);
  }
  /// Names the files of the mount that are not as they should be.
  std::string wrong(const Mount& mount) {
    std::string out;
    for (const auto& [name, text] : files_) {
      const auto got = read_file(mount / ".t/0/" + name);
      if (!got || *got != text)
        out += name + (got ? ": other bytes\n" : ": " + got.error().message() + "\n");
    }
    for (const char* name : {"liba.so.1", "libb.so.1"})
      if (read_file(mount / name).value_or("") != some_bytes(300'000, name[3]))
        out += std::string(name) + "\n";
    return out;
  }

  const TestDir dir_;
  const std::string tree_ = dir_ / "site";
  const std::string map_ = dir_ / "app.map";
  const std::string bundle_ = dir_ / "app.bundle";
  MapMaker maker_;
  std::map<std::string, std::string> files_;
  std::string resolve_;
  std::string gen_;
};

TEST_F(BundleMount, serves_all_files_without_their_originals) {
  pack();
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt");
  EXPECT_EQ(wrong(mount), "");
  EXPECT_EQ(value_or_throw(read_file(mount / ".t/0/link")), files_["big.bin"]);
  EXPECT_EQ(mount.stat_number("decoded"), mount.stat_number("frames"));
  EXPECT_EQ(mount.stat_number("decoded_again"), 0U);
  EXPECT_EQ(mount.stat_number("bad"), 0U);
  EXPECT_EQ(mount.stat_number("drift_files"), 0U);
  EXPECT_EQ(mount.stat_text("map_id"), value_or_throw(MapReader::open(bundle_)).id().hex());
  struct stat status {};
  ASSERT_EQ(::stat((mount / "liba.so.1").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, S_IFREG | 0644U);
  EXPECT_EQ(status.st_size, 300'000);
}

TEST_F(BundleMount, opens_no_original_of_what_it_has) {
  pack();
  SlowMount slow(tree_, tree_, dir_ / "counts", {.delay_us = 0});
  const Mount mount(bundle_, dir_ / "mnt");
  EXPECT_EQ(wrong(mount), "");
  auto counts = slow.counts();
  EXPECT_EQ(counts.files.size() + counts.missing.size(), 0U);
  EXPECT_EQ(counts.opcodes["OPEN"] + counts.opcodes["READ"], 0U);
}

TEST_F(BundleMount, of_a_trace_serves_the_rest_from_the_originals) {
  write_text(dir_ / "run.txt",
             "#heddle-trace\t1\n#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n"
             "1\t7\t7\topen\tOK\t" +
                 tree_ + "/pkg3/mod.py\n");
  pack({"--trace", dir_ / "run.txt"});
  const Mount mount(bundle_, dir_ / "mnt");
  EXPECT_EQ(wrong(mount), "");
  EXPECT_EQ(mount.stat_number("tree_files_opened"), files_.size() - 2);  // pkg3, and the empty one
}

TEST_F(BundleMount, a_damaged_frame_is_read_from_the_originals_else_an_error) {
  pack();
  {
    damage("big.bin", 2'000'000);
    const Mount mount(bundle_, dir_ / "mnt", {"--log", dir_ / "log"});
    EXPECT_EQ(wrong(mount), "");
    EXPECT_GT(mount.stat_number("bad"), 0U);
    const auto log = value_or_throw(read_file(dir_ / "log"));
    EXPECT_THAT(log, HasSubstr("app.bundle: is damaged or has changed"));
    EXPECT_EQ(lines_of(log).size(), 2U) << log;  // with the hint
  }
  write_text(tree_ + "/big.bin", "another file");
  {
    const Mount mount(bundle_, dir_ / "mnt");
    EXPECT_EQ(wrong(mount),
              "big.bin: " + (mount / ".t/0/big.bin") + ": cannot read: Input/output error\n");
  }
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt");
  EXPECT_THAT(wrong(mount), StartsWith("big.bin: "));
  EXPECT_EQ(lines_of(wrong(mount)).size(), 1U);
  EXPECT_EQ(value_or_throw(read_file(mount / ".t/0/pkg7/mod.py")), files_["pkg7/mod.py"]);
}

TEST_F(BundleMount, cut_or_changed_while_mounted_gives_the_right_bytes_or_an_error) {
  pack();
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "0"});
  const int worker = mount.worker();
  ASSERT_EQ(::truncate(bundle_.c_str(), 900'000), 0);
  for (const auto& [name, text] : files_) {
    const auto got = read_file(mount / ".t/0/" + name);
    EXPECT_TRUE(!got || *got == text) << name;
  }
  write_text(bundle_, std::string(3'000'000, 'x'));
  EXPECT_FALSE(read_file(mount / ".t/0/big.bin"));
  EXPECT_EQ(mount.worker(), worker);
}

TEST_F(BundleMount, a_new_worker_goes_on) {
  pack();
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "0"});
  EXPECT_EQ(value_or_throw(read_file(mount / ".t/0/pkg1/mod.py")), files_["pkg1/mod.py"]);
  const int worker = mount.worker();
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(wait_until(10s, [&] { return mount.worker() != worker; }));
  EXPECT_EQ(wrong(mount), "");
}

TEST_F(BundleMount, exchanges_with_its_map) {
  pack();
  const Mount mount(map_, dir_ / "mnt");
  auto done = mount.reload(bundle_);
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(mount.stat_text("map_id"), value_or_throw(MapReader::open(bundle_)).id().hex());
  EXPECT_EQ(wrong(mount), "");
  done = mount.reload();
  ASSERT_EQ(done.status, 0) << done.err;
  done = mount.reload(map_);
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(wrong(mount), "");
}

TEST_F(BundleMount, stages_only_what_is_not_in_it) {
  write_text(dir_ / "lib/secret", "not for others");
  ASSERT_EQ(::chmod((dir_ / "lib/secret").c_str(), 0600), 0);
  maker_.add_name("v", "secret", dir_ / "lib/secret");
  maker_.write(map_);
  pack();
  const Mount mount(bundle_, dir_ / "mnt", {"--stage", dir_ / "stage"});
  EXPECT_EQ(mount.wait_for_staging(), "done");
  EXPECT_EQ(mount.stat_number("staged"), 1U);
  EXPECT_EQ(value_or_throw(read_file(mount / "secret")), "not for others");
  EXPECT_EQ(wrong(mount), "");
}

TEST_F(BundleMount, verify_reads_the_bundle_and_the_mount) {
  pack();
  hide_origin();
  const auto verify = [&](const std::string& what) { return run({fs_mount(), "--verify", what}); };
  auto checked = verify(bundle_);
  EXPECT_EQ(checked.status, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("frames are as they were packed"));
  {
    const Mount mount(bundle_, dir_ / "mnt");
    checked = verify(mount.path());
    EXPECT_EQ(checked.status, 0) << checked.out << checked.err;
    EXPECT_EQ(checked.err, "");
  }
  damage("big.bin", 0);
  checked = verify(bundle_);
  EXPECT_EQ(checked.status, 1);
  EXPECT_THAT(checked.out, HasSubstr("other bytes than were packed"));
}

TEST_F(BundleMount, that_others_may_write_or_that_is_cut_is_refused) {
  pack();
  const auto mount = [&] { return run({fs_mount(), bundle_, dir_ / "mnt"}); };
  fs::create_directory(dir_ / "mnt");
  ASSERT_EQ(::chmod(bundle_.c_str(), 0666), 0);
  EXPECT_THAT(mount().err, HasSubstr("root does not use this map"));
  ASSERT_EQ(::chmod(bundle_.c_str(), 0644), 0);
  ASSERT_EQ(::truncate(bundle_.c_str(), 1000), 0);
  const auto cut = mount();
  EXPECT_NE(cut.status, 0);
  EXPECT_THAT(cut.err, HasSubstr("damaged bundle"));
  EXPECT_EQ(mounts_with(dir_ / "mnt"), 0U);
}

TEST_F(BundleMount, is_read_ahead_by_large_requests) {
  add("huge.bin", some_bytes(40'000'000, 5));
  MapMaker maker;
  maker.add_tree(tree_);
  maker.write(map_);
  pack();
  fs::create_directory(dir_ / "slow");
  fs::rename(bundle_, dir_ / "slow/app.bundle");
  SlowMount slow(dir_ / "slow", dir_ / "slow", dir_ / "counts");
  const Mount mount(dir_ / "slow/app.bundle", dir_ / "mnt", {"--prefetch", "0"});
  slow.reset();
  EXPECT_EQ(value_or_throw(read_file(mount / ".t/0/huge.bin")), files_["huge.bin"]);
  EXPECT_GE(mount.stat_number("frame_bytes") / mount.stat_number("frame_reads"), 1U << 20);
  const auto reads = slow.counts().opcodes["READ"];
  EXPECT_LE(reads, mount.stat_number("frame_bytes") / 100'000);
}

TEST_F(BundleMount, fs_gen_starts_a_program_whose_libraries_are_gone) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 60});
  run_checked({resolve_, "build", "-o", map_, farm.program});
  pack();
  fs::rename(dir_ / "farm/lib", dir_ / "farm/lib.gone");
  EXPECT_NE(run({farm.program}).status, 0);
  for (const Strings& more : {Strings{}, Strings{"--no-share"}, Strings{"--via", "fusermount"}}) {
    const auto ran = run(Strings{gen_, "--map", bundle_} + more + Strings{farm.program},
                         {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache")}});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ran.out, farm.output) << ran.err;
  }
}

}  // namespace
}  // namespace heddle::test
