// SPDX-License-Identifier: MIT
// Bundles that are mounted as they are, with real programs.
#include <sys/stat.h>

#include <future>

#include "tests/bundle/bundle_support.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/fuse_kernel.hpp"
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
      write_text_file(dir_ / ("lib/" + std::string(name)), some_bytes(300'000, name[3]));
      maker_.add_name("v", name, dir_ / ("lib/" + std::string(name)));
    }
    fs::create_symlink("big.bin", tree_ + "/link");
    maker_.add_tree(tree_);
    maker_.write(map_);
  }

  void add(const std::string& name, const std::string& text) {
    write_text_file(tree_ + "/" + name, text);
    files_[name] = text;
  }
  void pack(const Strings& more = {}) {
    run_checked(Strings{resolve_, "pack", map_, "-o", bundle_} + more);
  }
  /// A trace, run.txt, of a run that opened one file of the tree.
  void record_one_file() {
    write_text_file(dir_ / "run.txt",
                    "#heddle-trace\t1\n#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n"
                    "1\t7\t7\topen\tOK\t" +
                        tree_ + "/pkg3/mod.py\n");
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
  /// Damages the frames in which libraries begin.
  void damage_libraries() {
    const auto reader = value_or_throw(MapReader::open(bundle_));
    const auto opened = value_or_throw(open_file(bundle_, O_RDWR));
    for (const auto place : reader.bundle()->objects) {
      if (place == kAtOrigin) continue;
      const auto& frame = reader.bundle()->frames[place / kFrameSize];
      ASSERT_EQ(::pwrite(opened.get(), "damage", 6, static_cast<off_t>(frame.offset + 20)), 6);
    }
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
  EXPECT_GT(mount.stat_number("frame_bytes"), mount.stat_number("frame_reads"));
  EXPECT_EQ(mount.stat_number("bad"), 0U);
  EXPECT_EQ(mount.stat_number("drift_files"), 0U);
  EXPECT_EQ(mount.stat_text("map_id"), value_or_throw(MapReader::open(bundle_)).id().hex());
  struct stat status {};
  ASSERT_EQ(::stat((mount / "liba.so.1").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, S_IFREG | 0644U);
  EXPECT_EQ(status.st_size, 300'000);
}

TEST_F(BundleMount, libraries_are_read_ahead_in_its_order) {
  HEDDLE_NEEDS_OPEN_TREE();
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 200, .text = 700'000});
  run_checked({resolve_, "build", "-o", map_, farm.program});
  pack();
  const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "1G"});
  mount.wait_for_prefetch();
  const auto reads = mount.stat_number("read");
  EXPECT_GE(mount.stat_number("bytes_read"), 200U * 700'000);
  EXPECT_EQ(mount.stat_number("decoded"), mount.stat_number("frames"));
  EXPECT_GT(mount.stat_number("frames"), 100U);
  EXPECT_EQ(mount.stat_number("decoded_again"), 0U);
  for (const auto& name : farm.sonames) ASSERT_TRUE(read_file(mount / name)) << name;
  // The kernel has them, but for what it may have reclaimed since.
  EXPECT_LE(mount.stat_number("read"), reads + reads / 20);
}

TEST_F(BundleMount, of_one_fs_gen_has_its_libraries_read_ahead_too) {
  HEDDLE_NEEDS_OPEN_TREE();
  if (::geteuid() != 0) HEDDLE_SKIP("only root may clone a mount of its own");
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 60, .text = 700'000});
  run_checked({resolve_, "build", "-o", map_, farm.program});
  pack();
  const auto ran = run_checked(
      {gen_, "-q", "--no-share", "--map", bundle_, "--", "/bin/sh", "-c",
       "at=${HEDDLE_INDEX%/.heddle/index}\n"
       "until \"$0\" --stats --json $at | grep -q '\"prefetch\": *\"done\"'; do sleep 0.05; done\n"
       "exec \"$0\" --stats --json $at",
       fs_mount()},
      {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache")}});
  const auto stats = nlohmann::json::parse(ran.out);
  EXPECT_GT(stats["bundle"]["frames"], 30);
  EXPECT_EQ(stats["bundle"]["decoded"], stats["bundle"]["frames"]);
  EXPECT_EQ(stats["bundle"]["decoded_again"], 0);
  EXPECT_GE(stats["bytes_read"], 60 * 700'000);
}

TEST_F(BundleMount, files_of_trees_are_read_ahead_too) {
  HEDDLE_NEEDS_OPEN_TREE();
  pack();
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt");
  mount.wait_for_prefetch();
  EXPECT_EQ(mount.stat_number("decoded"), mount.stat_number("frames"));
  EXPECT_EQ(mount.stat_number("decoded_again"), 0U);
  const Stopped stopped(mount.worker());
  const auto read =
      run({"sh", "-c", "cd \"$0/.t/0\" && cat */mod.py big.bin | wc -c", mount.path()},
          {.deadline = 10s});
  EXPECT_FALSE(read.timed_out);
  EXPECT_GT(std::stoul("0" + read.out), 5'000'000U);
}

TEST_F(BundleMount, of_a_trace_only_its_own_files_are_read_ahead) {
  HEDDLE_NEEDS_OPEN_TREE();
  record_one_file();
  pack({"--trace", dir_ / "run.txt"});
  const Mount mount(bundle_, dir_ / "mnt");
  mount.wait_for_prefetch();
  EXPECT_EQ(mount.stat_number("tree_files_opened"), 0U);
  const auto listed = mount.stat_number("readdirplus");
  EXPECT_LT(listed, 20U);
  const Stopped stopped(mount.worker());
  const auto read = run({"cat", mount / ".t/0/pkg3/mod.py"}, {.deadline = 10s});
  EXPECT_FALSE(read.timed_out);
  EXPECT_EQ(read.out, files_["pkg3/mod.py"]);
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
  record_one_file();
  pack({"--trace", dir_ / "run.txt"});
  const Mount mount(bundle_, dir_ / "mnt");
  EXPECT_EQ(wrong(mount), "");
  EXPECT_EQ(mount.stat_number("tree_files_opened"), files_.size() - 2);  // pkg3, and the empty one
  EXPECT_EQ(mount.stat_number("from_origin_files"), files_.size() - 2);
}

TEST_F(BundleMount, what_a_run_takes_from_the_originals_is_in_the_next_bundle) {
  if (::geteuid() != 0) HEDDLE_SKIP("trees over their own paths need root or a user namespace");
  record_one_file();
  add(".netrc", "machine x password y");
  run_checked({resolve_, "build", "-o", map_, "--tree", tree_, "/bin/sh"});
  pack({"--trace", dir_ / "run.txt"});
  const auto report = dir_ / "report.json";
  const auto run_app = [&](const std::string& script) {
    return run_checked({gen_, "--map", bundle_, "--json", report, "/bin/sh", "-c",
                        "cd " + tree_ + "; " + script})
        .err;
  };
  const auto from_origin = [&] {
    return nlohmann::json::parse(value_or_throw(read_file(report)))["from_origin"].get<Strings>();
  };
  const auto said = run_app("cat pkg3/mod.py pkg9/mod.py pkg1/mod.py .netrc");
  EXPECT_EQ(from_origin(),
            (Strings{tree_ + "/.netrc", tree_ + "/pkg1/mod.py", tree_ + "/pkg9/mod.py"}));
  EXPECT_THAT(said, HasSubstr("3 of them: fs-resolve pack --add FILE"));
  pack({"--trace", dir_ / "run.txt", "--add", report});
  run_app("cat pkg3/mod.py pkg9/mod.py pkg1/mod.py .netrc pkg2/mod.py");
  EXPECT_EQ(from_origin(), (Strings{tree_ + "/.netrc", tree_ + "/pkg2/mod.py"}));

  const auto refused = [&](const std::string& text) {
    write_text_file(dir_ / "bad.json", text);
    const auto done = run({resolve_, "pack", map_, "-o", dir_ / "none", "--trace", dir_ / "run.txt",
                           "--add", dir_ / "bad.json"});
    EXPECT_NE(done.status, 0) << text;
    EXPECT_FALSE(fs::exists(dir_ / "none"));
    return done.err;
  };
  EXPECT_THAT(refused("{"), HasSubstr("bad.json: cannot be added: it is not JSON"));
  EXPECT_THAT(refused("{\"from_origin\": 1}"), HasSubstr("it has no from_origin"));
  EXPECT_THAT(run({resolve_, "pack", map_, "-o", dir_ / "none", "--add", report}).err,
              HasSubstr("--trace"));
}

TEST_F(BundleMount, without_its_tree_answers_eio_for_what_it_does_not_have) {
  add(".netrc", "machine x password y");
  MapMaker maker;
  maker.add_tree(tree_);
  maker.write(map_);
  pack();
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt", {"--log", dir_ / "log"});
  const auto left_out = read_file(mount / ".t/0/.netrc");
  EXPECT_EQ(left_out ? 0 : left_out.error().code(), EIO);
  EXPECT_EQ(read_file(mount / ".t/0/big.bin").value_or(""), files_["big.bin"]);
  EXPECT_GT(mount.stat_number("tree_unreachable"), 0U);
  EXPECT_THAT(value_or_throw(read_file(dir_ / "log")),
              HasSubstr(".netrc: answered with an error: the bundle does not have it"));
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
  write_text_file(tree_ + "/big.bin", "another file");
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

TEST_F(BundleMount, a_damaged_frame_of_a_library_is_read_from_its_original_by_a_new_worker) {
  HEDDLE_NEEDS_RESEND();
  pack();
  damage_libraries();
  {
    const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "0", "--log", dir_ / "log"});
    EXPECT_EQ(wrong(mount), "");
    EXPECT_GT(mount.stat_number("bad"), 0U);
    EXPECT_LE(mount.stat_number("workers_lost"), 1U);  // 0 without Landlock
  }
  write_text_file(dir_ / "lib/liba.so.1", "another file");
  const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "0"});
  EXPECT_EQ(wrong(mount), "liba.so.1\n");
  fs::remove(dir_ / "lib/libb.so.1");
  const Mount other(bundle_, dir_ / "other", {"--prefetch", "0"});
  EXPECT_EQ(wrong(other), "liba.so.1\nlibb.so.1\n");
}

TEST_F(BundleMount, a_damaged_library_is_served_while_the_file_system_of_another_hangs) {
  HEDDLE_NEEDS_RESEND();
  const OriginFs origin(dir_ / "source", dir_ / "far");
  write_text_file(origin.source() + "/libfar.so.1", some_bytes(300'000, 3));
  maker_.add_name("v", "libfar.so.1", origin / "libfar.so.1");
  maker_.write(map_);
  pack();
  damage_libraries();
  origin.hang();
  const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "0", "--origin-timeout", "0"});
  auto got = std::async(std::launch::async, [&] { return read_file(mount / "liba.so.1"); });
  EXPECT_EQ(got.wait_for(20s), std::future_status::ready);
  origin.answer();
  EXPECT_EQ(got.get().value_or(""), some_bytes(300'000, 'a'));
}

TEST_F(BundleMount, a_damaged_frame_is_read_from_the_other_copy) {
  pack();
  hide_origin();
  fs::copy_file(bundle_, dir_ / "copy");
  damage("big.bin", 2'000'000);
  {
    const Mount mount(bundle_, dir_ / "mnt", {"--fallback", dir_ / "copy"});
    EXPECT_EQ(wrong(mount), "");
    EXPECT_EQ(mount.stat_number("bad"), 0U);
  }
  for (const char* other : {"none", "app.map", "app.bundle.sig"}) {
    if (other == std::string("app.bundle.sig")) write_text_file(dir_ / other, "text");
    fs::create_directories(dir_ / "mnt");
    const auto done = run({fs_mount(), "--fallback", dir_ / other, bundle_, dir_ / "mnt"});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.err, HasSubstr("is not used where the bundle is damaged"));
    run_checked({fs_mount(), "-u", dir_ / "mnt"});
  }
}

/// fs-ship's directory on a node.
TEST_F(BundleMount, a_shipped_copy_that_is_damaged_is_read_from_its_source_then_the_originals) {
  const std::string python = "/usr/bin/python3.11";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3.11");
  add("mod.py", "x = 1\n");
  run_checked({resolve_, "build", "-o", map_, "--tree", tree_, python});
  pack();
  const auto id = value_or_throw(MapReader::open(bundle_)).id().hex();
  const auto shared = dir_ / "shared.bundle";
  fs::rename(bundle_, shared);
  fs::create_directory(dir_ / "job");
  const auto copy = dir_ / ("job/" + id + ".bundle");
  const auto source = dir_ / ("job/" + id + ".source");
  fs::copy_file(shared, copy);
  {
    // All of the tree: the sandbox opens no library that is in the bundle.
    const auto reader = value_or_throw(MapReader::open(copy));
    const auto content = value_or_throw(reader.read_all());
    std::uint64_t end = 0;
    for (ObjectId object = 0; object < content.objects.size(); ++object)
      if (const auto place = reader.bundle()->objects[object]; place != kAtOrigin)
        end = std::max(end, place + content.objects[object].stamp.size);
    const auto opened = value_or_throw(open_file(copy, O_RDWR));
    const auto& frames = reader.bundle()->frames;
    for (auto number = end / kFrameSize + 1; number < frames.size(); ++number)
      ASSERT_EQ(::pwrite(opened.get(), "damage", 6, static_cast<off_t>(frames[number].offset + 20)),
                6);
  }
  const auto start = [&] {
    return run({gen_, "-q", "--map", copy, "--", python, "-B", "-c",
                "import sys; print(open(sys.argv[1] + '/big.bin', 'rb').read() == "
                "open(sys.argv[2], 'rb').read())\n"
                "print(len(open(sys.argv[1] + '/__pycache__/mod.cpython-311.pyc', 'rb').read()))",
                tree_, dir_ / "big"},
               {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache")}});
  };
  write_text_file(dir_ / "big", files_["big.bin"]);
  // No link: big.bin has an original, what was compiled has none.
  auto ran = start();
  EXPECT_THAT(ran.out, StartsWith("True\n")) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("Input/output error"));
  // A changed original is no source.
  fs::rename(tree_ + "/big.bin", dir_ / "kept.bin");
  write_text_file(tree_ + "/big.bin", files_["big.bin"]);
  EXPECT_THAT(start().err, HasSubstr("Input/output error"));
  fs::create_symlink(dir_ / "gone.bundle", source);
  EXPECT_THAT(start().err, HasSubstr("Input/output error"));
  fs::remove(source);
  fs::create_symlink(shared, source);
  ran = start();
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, StartsWith("True\n")) << ran.err;
  // Another user's link is not followed.
  if (::geteuid() == 0) {
    ASSERT_EQ(::lchown(source.c_str(), 12345, 12345), 0);
    EXPECT_THAT(start().err, HasSubstr("Input/output error"));
  }
}

TEST_F(BundleMount, cut_or_changed_while_mounted_gives_the_right_bytes_or_an_error) {
  add("huge.bin", some_bytes(30'000'000, 5));  // more than is decoded ahead
  MapMaker maker;
  maker.add_tree(tree_);
  maker.write(map_);
  pack();
  hide_origin();
  const Mount mount(bundle_, dir_ / "mnt", {"--prefetch", "0"});
  const int worker = mount.worker();
  ASSERT_EQ(::truncate(bundle_.c_str(), 900'000), 0);
  for (const auto& [name, text] : files_) {
    const auto got = read_file(mount / ".t/0/" + name);
    EXPECT_TRUE(!got || *got == text) << name;
  }
  write_text_file(bundle_, std::string(3'000'000, 'x'));
  EXPECT_FALSE(read_file(mount / ".t/0/huge.bin"));
  EXPECT_EQ(mount.worker(), worker);
}

TEST_F(BundleMount, a_new_worker_goes_on) {
  HEDDLE_NEEDS_RESEND();
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
  write_text_file(dir_ / "lib/secret", "not for others", 0600);
  maker_.add_name("v", "secret", dir_ / "lib/secret");
  maker_.write(map_);
  pack();
  fs::create_directory(dir_ / "stage");
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
  fs::rename(tree_ + ".gone", tree_);
  fs::rename(dir_ / "lib.gone", dir_ / "lib");
  {
    const Mount mount(bundle_, dir_ / "mnt");
    EXPECT_EQ(wrong(mount), "");
    checked = verify(mount.path());
    EXPECT_EQ(checked.status, 0) << checked.out << checked.err;
    EXPECT_THAT(checked.err, HasSubstr("its bundle is damaged (fs-resolve verify names"));
  }
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

TEST_F(BundleMount, of_another_user_is_mounted_by_root_if_it_is_signed) {
  if (::access("/usr/bin/ssh-keygen", X_OK) != 0) HEDDLE_SKIP("no ssh-keygen");
  pack();
  const auto key = [&](const std::string& name) {
    run_checked({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir_ / name});
    return "release " + value_or_throw(read_file(dir_ / (name + ".pub")));
  };
  write_text_file(dir_ / "signers", key("ours"));
  key("theirs");
  const auto sign = [&](const std::string& name, const std::string& what) {
    fs::remove(bundle_ + ".sig");
    write_text_file(dir_ / "id", what + "\n");
    run_checked({"ssh-keygen", "-q", "-Y", "sign", "-n", "heddle", "-f", dir_ / name, dir_ / "id"});
    fs::rename(dir_ / "id.sig", bundle_ + ".sig");
  };
  ASSERT_EQ(::chown(bundle_.c_str(), 12345, 12345), 0);
  fs::create_directory(dir_ / "mnt");
  const auto refused = [&](const std::string& why) {
    const auto done = run({fs_mount(), "--signers", dir_ / "signers", bundle_, dir_ / "mnt"});
    EXPECT_NE(done.status, 0);
    EXPECT_THAT(done.err, HasSubstr(why));
  };
  const auto id = value_or_throw(MapReader::open(bundle_)).id().hex();
  refused("app.bundle.sig");
  sign("theirs", id);
  refused("no key of --signers");
  sign("ours", std::string(64, 'a'));
  refused("its signature is another one's");
  write_text_file(bundle_ + ".sig", "text");
  refused("no key of --signers");
  sign("ours", id);
  {
    const Mount mount(bundle_, dir_ / "mnt", {"--signers", dir_ / "signers"});
    EXPECT_EQ(wrong(mount), "");
  }
  EXPECT_NE(run({fs_mount(), bundle_, dir_ / "mnt"}).status, 0);
  ASSERT_EQ(::chmod((dir_ / "signers").c_str(), 0666), 0);
  refused("signers");
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
  damage_libraries();
  const auto ran = run({gen_, "--map", bundle_, farm.program},
                       {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache")}});
  EXPECT_EQ(ran.status, 127) << "ld.so's";
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("ran unguided: " + bundle_ + " is damaged (fs-resolve verify"),
                    HasSubstr("--fallback")));
}

TEST_F(BundleMount, fs_gen_reports_damage_and_what_it_cannot_use) {
  run_checked({resolve_, "build", "-o", map_, "--python", "off", "--tree", tree_, "/bin/cat"});
  pack();
  const auto gen = [&](const Strings& more) {
    return run(Strings{gen_, "--map", bundle_} + more + Strings{"--", "cat", tree_ + "/big.bin"},
               {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache")}});
  };
  EXPECT_THAT(gen({}).err, Not(HasSubstr("damaged")));
  damage("big.bin", 2'000'000);
  auto ran = gen({"--json", dir_ / "r.json"});
  EXPECT_EQ(ran.out, files_["big.bin"]);
  EXPECT_THAT(ran.err, testing::ContainsRegex("\n  damaged +1 reads of the bundle "));
  EXPECT_THAT(value_or_throw(read_file(dir_ / "r.json")), HasSubstr("\"bad_frame_reads\": 1"));
  fs::remove(tree_ + "/big.bin");
  ran = gen({});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("reads of the bundle"), Not(HasSubstr("changed"))));
  write_text_file(tree_ + "/big.bin", "original");
  ran = gen({"--via", "direct"});
  EXPECT_EQ(ran.out, "original");
  EXPECT_THAT(ran.err, HasSubstr("continuing without directory trees"));
  fs::remove_all(tree_);
  ran = gen({"--via", "direct"});
  EXPECT_EQ(ran.status, 3);
  EXPECT_THAT(ran.err, HasSubstr("its directory trees cannot be served"));
  EXPECT_THAT(gen({}).err, HasSubstr("hint: mkdir -p "));
  const auto no_bundle = run({gen_, "--map", map_, "--fallback", bundle_, "--", "true"});
  EXPECT_THAT(no_bundle.err, HasSubstr("app.bundle: is not used: the map is no bundle"));
}

TEST_F(BundleMount, fs_gen_says_that_its_temporary_directory_is_full) {
  pack();
  fs::create_directory(dir_ / "full");
  const auto ran =
      run({"unshare", "-m", "sh", "-c",
           "mount -t tmpfs -o size=64k,mode=0755 none \"$TMPDIR\" && head -c 65536 "
           "/dev/zero >\"$TMPDIR/x\"; exec \"$0\" \"$@\"",
           gen_, "--map", bundle_, "true"},
          {.env = {"TMPDIR=" + (dir_ / "full"), "XDG_CACHE_HOME=" + (dir_ / "cache")}});
  EXPECT_EQ(ran.status, 3);
  EXPECT_THAT(ran.err,
              HasSubstr("No space left on device\nhint: TMPDIR names another directory\n"));
}

TEST_F(BundleMount, fs_gen_starts_the_python_of_a_venv_that_is_not_on_this_node) {
  const std::string python = "/usr/bin/python3";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3");
  const auto venv = dir_ / "ve";
  run_checked({python, "-m", "venv", "--without-pip", venv});
  write_text_file(venv + "/bin/tool", "#!" + venv + "/bin/python3\nprint('tool')\n", 0755);
  run_checked({resolve_, "build", "-o", map_, "--python", venv + "/bin/python3", "--tree", venv,
               venv + "/bin/python3"});
  pack();
  fs::rename(venv, venv + ".gone");
  fs::create_directory(venv);
  const auto gen = [&](const std::string& app, const Strings& more = {}) {
    const Strings options = Strings{gen_, "-q", "--map", bundle_} + more;
    return run(options + Strings{app, "-c", "import sys; print(sys.executable)"},
               {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache"),
                        "PATH=/nonexistent:" + venv + "/bin:" + std::getenv("PATH")},
                .cwd = dir_.path()});
  };
  const auto expected = venv + "/bin/python3\n";
  for (const auto& app : {venv + "/bin/python3", std::string("ve/bin/python3"),
                          std::string("ve/bin/../bin/python3"), std::string("python3")}) {
    const auto ran = gen(app);
    EXPECT_EQ(ran.status, 0) << app << ran.err;
    EXPECT_EQ(ran.out, expected) << app;
  }
  EXPECT_EQ(gen(venv + "/bin/tool").out, "tool\n");
  EXPECT_THAT(run({gen_, "--explain", "--map", bundle_, venv + "/bin/python3"}).out,
              HasSubstr("libraries, "));
  for (const char* app : {"ve/bin/none", "ve/bin", "ve", "ve/bin/activate"}) {
    const auto ran = gen(app);
    EXPECT_TRUE(ran.status == 126 || ran.status == 127) << app << ran.status;
    EXPECT_THAT(ran.err, HasSubstr("cannot run")) << app;
  }
  EXPECT_EQ(gen(venv + "/bin/python3", {"--via", "direct"}).status, 127);
}

TEST_F(BundleMount, fs_gen_imports_python_packages_over_their_own_path) {
  const std::string python = "/usr/bin/python3";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3");
  const auto site = dir_ / "packages";
  for (int i = 0; i < 30; ++i)
    write_text_file(site + "/pkg" + std::to_string(i) + "/__init__.py",
                    "from . import part\nvalue = " + std::to_string(i) + "\n");
  for (int i = 0; i < 30; ++i)
    write_text_file(site + "/pkg" + std::to_string(i) + "/part.py", "def f(): return __file__\n");
  const auto script = dir_ / "work/script.py";
  write_text_file(script, "import sys\nsys.path.insert(0, " + ("'" + site + "'") +
                              ")\n"
                              "for i in range(30):\n"
                              "  m = __import__(f'pkg{i}')\n"
                              "  print(m.value, m.__file__, m.__cached__, m.part.f(), "
                              "m.part.f.__code__.co_filename)\n");
  const auto bare = run_checked({python, "-B", script});
  run_checked({resolve_, "build", "-o", map_, "--tree", site, python});
  pack();
  EXPECT_THAT(run({resolve_, "pack", "--list", bundle_}).out, HasSubstr("/__pycache__/part."));
  // Only what the bundle has.
  fs::rename(site, site + ".gone");
  fs::create_directory(site);
  for (const Strings& more : {Strings{}, Strings{"--no-share"}}) {
    const auto ran = run(Strings{gen_, "--map", bundle_} + more + Strings{"--", python, script},
                         {.env = {"TMPDIR=" + dir_.path(), "XDG_CACHE_HOME=" + (dir_ / "cache")},
                          .cwd = dir_ / "work"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ran.out, bare.out) << ran.err;
  }
  EXPECT_TRUE(fs::is_empty(site));
}

}  // namespace
}  // namespace heddle::test
