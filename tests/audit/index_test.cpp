// SPDX-License-Identifier: MIT
#include "resolver/map/index_writer.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "fuseovl/audit/index_view.hpp"
#include "resolver/map/index_format.hpp"

namespace heddle {
namespace {

MapObject object(const std::string& path, const std::string& soname = {}) {
  MapObject out;
  out.path = path;
  out.soname = soname;
  return out;
}

FileStamp stamp(std::uint64_t ino) { return {{2049, ino}, 0, 1000000000 * std::int64_t(ino), 0}; }

/// One program, two libraries, ld.so.
MapContent small_map() {
  MapContent map;
  map.objects = {object("/app"), object("/lib/ld.so.1", "ld.so.1"),
                 object("/o/liba.so.1.2", "liba.so.1"), object("/o/libb.so", "libb.so")};
  map.views = {{"v", {{"liba.so.1", 2}, {"liba.so.1.2", 2}, {"libb.so", 3}}}};
  MapProgram program;
  program.path = "/app";
  program.interpreter = "/lib/ld.so.1";
  program.guided = {
      {"/lib/ld.so.1", 1}, {"/o/liba.so.1.2", 2}, {"ld.so.1", 1}, {"liba.so.1", 2}, {"libb.so", 3}};
  map.programs = {program};
  map.paths = {{"/lib/ld.so.1", 1}, {"/o/liba.so.1.2", 2}, {"/o/libb.so", 3}};
  return map;
}

class Index : public ::testing::Test {
 protected:
  MapContent map_ = small_map();
  std::vector<std::optional<FileStamp>> stamps_ = {stamp(7)};
  std::vector<bool> direct_ = {false, false, false, false};
  std::vector<std::optional<FileStamp>> files_ = {stamp(70), stamp(71), stamp(72), stamp(73)};
  std::string bytes_;

  std::string make() {
    return bytes_ = value_or_throw(make_index({map_, "/mnt", stamps_, direct_, files_}));
  }
  /// Where the file with inode `ino` is served to the program; "" when it is not.
  std::string target_of_file(std::uint64_t ino, std::int64_t late_ns = 0) {
    audit::IndexView view;
    EXPECT_TRUE(view.open(bytes_.data(), bytes_.size()));
    view.choose(2049, 7, 7000000000);
    const char* out = view.target_of_file(2049, ino, 1000000000 * std::int64_t(ino) + late_ns);
    return out ? out : "";
  }
  /// Where `name` leads for the program; "" when nowhere.
  std::string target(const std::string& name) {
    audit::IndexView view;
    EXPECT_TRUE(view.open(bytes_.data(), bytes_.size()));
    view.choose(2049, 7, 7000000000);
    const char* out = view.target(name.c_str());
    return out ? out : "";
  }
};

TEST_F(Index, the_loader_s_own_names_are_left_out) {
  make();
  EXPECT_EQ(target("ld.so.1"), "");
  EXPECT_EQ(target("/lib/ld.so.1"), "");
  map_.programs[0].interpreter = "/lib64/ld.so.1";  // a path the map does not know
  make();
  EXPECT_EQ(target("ld.so.1"), "");
  EXPECT_EQ(target("/lib/ld.so.1"), "");
  EXPECT_EQ(target("libb.so"), "/mnt/libb.so");
}

TEST_F(Index, a_direct_object_or_one_without_a_name_leads_to_its_origin) {
  direct_[3] = true;
  map_.views[0].names = {{"libb.so", 3}};
  make();
  EXPECT_EQ(target("libb.so"), "/o/libb.so");
  EXPECT_EQ(target("liba.so.1"), "/o/liba.so.1.2");
}

TEST_F(Index, files_in_trees_are_matched_on_the_mount_of_the_index_only) {
  constexpr std::uint64_t kMount = 77;
  std::vector<std::optional<FileStamp>> in_trees = {stamp(107), std::nullopt, stamp(172), {}};
  for (auto& each : in_trees)
    if (each) each->id.dev = index_format::kThisMount;
  const auto bytes = value_or_throw(make_index({map_, "/mnt", stamps_, direct_, files_, in_trees}));
  for (const std::uint64_t mount : {kMount, kMount + 1}) {
    audit::IndexView view;
    ASSERT_TRUE(view.open(bytes.data(), bytes.size(), mount));
    EXPECT_EQ(view.choose(kMount, 107, 107000000000), mount == kMount);
    EXPECT_TRUE(view.choose(2049, 7, 7000000000));
    const char* inside = view.target_of_file(kMount, 172, 172000000000);
    EXPECT_STREQ(inside, mount == kMount ? "/mnt/liba.so.1" : nullptr);
    EXPECT_STREQ(view.target_of_file(2049, 72, 72000000000), "/mnt/liba.so.1");
  }
}

TEST_F(Index, files_are_matched_by_identity) {
  make();
  EXPECT_EQ(target_of_file(72), "/mnt/liba.so.1");
  EXPECT_EQ(target_of_file(73), "/mnt/libb.so");
  EXPECT_EQ(target_of_file(73, 1), "");  // changed since
  EXPECT_EQ(target_of_file(71), "");     // ld.so
  EXPECT_EQ(target_of_file(74), "");
  files_[3] = std::nullopt;
  make();
  EXPECT_EQ(target_of_file(73), "");
  files_.clear();
  make();
  EXPECT_EQ(target_of_file(72), "");
  audit::IndexView view;
  ASSERT_TRUE(view.open(bytes_.data(), bytes_.size()));
  EXPECT_EQ(view.target_of_file(2049, 72, 72000000000), nullptr);  // no program chosen
}

TEST_F(Index, targets_lead_back_to_their_origins) {
  make();
  audit::IndexView view;
  ASSERT_TRUE(view.open(bytes_.data(), bytes_.size()));
  ASSERT_TRUE(view.choose(2049, 7, 7000000000));
  EXPECT_STREQ(view.original(view.target("liba.so.1")), "/o/liba.so.1.2");
  EXPECT_STREQ(view.original(view.target_of_file(2049, 72, 72000000000)), "/o/liba.so.1.2");
  EXPECT_EQ(view.original("/mnt/liba.so.1"), nullptr);  // no string of the index
}

TEST_F(Index, an_inherited_rpath_keeps_its_owner_in_its_directory) {
  map_.objects[2].rpath = "${ORIGIN}";
  map_.objects[3].imports_dlopen = true;
  map_.programs[0].libraries = {{2, "liba.so.1", "rpath", "/app"},
                                {3, "libb.so", "rpath", "/o/liba.so.1.2"}};
  make();
  EXPECT_EQ(target("liba.so.1"), "/o/liba.so.1.2");
  EXPECT_EQ(target("libb.so"), "/mnt/libb.so");
  map_.objects[2].runpath = "/y";  // then ld.so does not look at the RPATH
  make();
  EXPECT_EQ(target("liba.so.1"), "/mnt/liba.so.1");
}

TEST_F(Index, names_that_depend_on_the_caller_are_left_to_the_loader) {
  map_.programs[0].guided = {{"$ORIGIN/libb.so", 3}, {"./libb.so", 3}, {"sub/libb.so", 3}};
  make();
  for (const auto& [name, id] : map_.programs[0].guided) EXPECT_EQ(target(name), "");
}

TEST_F(Index, a_library_whose_search_begins_beside_it_is_not_moved_unless_all_it_needs_is_guided) {
  map_.objects[3].runpath = "$ORIGIN";
  map_.objects[3].needed = {"liba.so.1"};
  make();
  EXPECT_EQ(target("libb.so"), "/mnt/libb.so");
  map_.objects[3].needed = {"liba.so.1", "libx.so"};
  make();
  EXPECT_EQ(target("libb.so"), "/o/libb.so");
  map_.programs[0].guided.insert(map_.programs[0].guided.begin() + 4,
                                 {std::string("libx.so\0/o/libb.so", 18), 2});
  make();
  EXPECT_EQ(target("libb.so"), "/o/libb.so") << "in some processes it is not";
}

TEST_F(Index, programs_of_one_file_share_only_common_targets) {
  map_.objects.push_back(object("/p/libb.so"));
  direct_.push_back(true);
  files_.push_back(stamp(74));
  MapProgram link = map_.programs[0];
  link.path = "/link";
  link.guided = {{"liba.so.1", 2}, {"libb.so", 4}, {"libz.so", 3}};
  map_.programs.push_back(link);
  stamps_.push_back(stamp(7));
  make();
  EXPECT_EQ(target("liba.so.1"), "/mnt/liba.so.1");
  EXPECT_EQ(target("libb.so"), "");
  EXPECT_EQ(target("libz.so"), "");
}

TEST_F(Index, checksum_covers_the_body) {
  make();
  index_format::Header header;
  std::memcpy(&header, bytes_.data(), sizeof header);
  EXPECT_EQ(header.checksum,
            index_format::fnv1a(bytes_.data() + sizeof header, bytes_.size() - sizeof header));
  EXPECT_EQ(header.file_size, bytes_.size());
  const std::string first = bytes_;
  EXPECT_EQ(first, make());
  EXPECT_EQ(make_index({map_, "/mnt", {}, direct_}).error().code(), EINVAL) << "does not fit";
}

}  // namespace
}  // namespace heddle
